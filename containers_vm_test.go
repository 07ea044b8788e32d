package unitask_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// boxImage writes a container image in docker save's format, with programs from busybox.
func boxImage(t testing.TB, name string, config map[string]any, links ...[2]string) string {
	t.Helper()
	box, err := os.ReadFile(filepath.Join(baseHome, "vendor", runtime.GOARCH, "busybox", "root", "bin", "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	archive := func(entries ...*tar.Header) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, h := range entries {
			text := []byte(h.PAXRecords["text"])
			h.PAXRecords = nil
			if h.Name == "bin/busybox" {
				text = box
			}
			h.Size = int64(len(text))
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(text); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	file := func(name, text string, mode int64) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, PAXRecords: map[string]string{"text": text}}
	}
	folder := func(name string, mode int64, uid int) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, Uid: uid, Gid: uid}
	}
	entries := []*tar.Header{
		folder("bin", 0o755, 0), folder("tmp", 0o1777, 0), folder("etc", 0o755, 0), folder("home/app", 0o755, 1234),
		file("bin/busybox", "", 0o4755),
		file("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1234:1235::/home/app:/bin/sh\n", 0o644),
		file("etc/group", "app:x:1235:\nmore:x:77:app\n", 0o644),
		file("bin/entry", "#!/bin/sh\necho entry \"$@\"\n", 0o755), file("secret", "s\n", 0o600),
		// Links that lead outside, and that replace the guest's own files.
		{Name: "etc/resolv.conf", Typeflag: tar.TypeSymlink, Linkname: "/../../../init"},
		{Name: "unitask", Typeflag: tar.TypeSymlink, Linkname: "/bin"},
		{Name: "proc", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
		{Name: "work", Typeflag: tar.TypeSymlink, Linkname: "../../tmp"},
	}
	for _, tool := range []string{"sh", "ls", "cat", "id", "mount", "ps", "mknod", "chroot", "ln", "rm", "kill", "chmod",
		"sleep", "nc", "umount", "head", "stat", "touch", "grep", "mkdir", "dd", "env", "wget", "nslookup"} {
		entries = append(entries, &tar.Header{Name: "bin/" + tool, Typeflag: tar.TypeSymlink, Linkname: "busybox"})
	}
	for _, l := range links {
		entries = append(entries, &tar.Header{Name: l[0], Typeflag: tar.TypeSymlink, Linkname: l[1]})
	}
	layer := archive(entries...)
	text, err := json.Marshal(map[string]any{"os": "linux", "architecture": runtime.GOARCH, "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sha256Hex(layer)}}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name},
		"Layers": []string{"layer.tar"}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	all := archive(file("config.json", string(text), 0o644), file("layer.tar", string(layer), 0o644),
		file("manifest.json", string(list), 0o644))
	if err := os.WriteFile(path, all, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

type containersRow struct {
	name           string
	req            unitask.Request
	stdin          string
	stdout, stderr string // stderr: a part of it
	exit           int
}

// containersRows are the cases of TestContainers.
func containersRows(
	sh func(script string) unitask.Request,
	with func(req unitask.Request, change func(*unitask.Request)) unitask.Request, note string,
) []containersRow {
	return []containersRow{
		{"its own command", unitask.Request{Image: "test/box:1", Exec: true}, "", "uid=0(root) gid=0 groups=0\n/\n", "", 0},
		{"booted", unitask.Request{Image: "test/box:1", Exec: true, Cold: true}, "", "uid=0(root) gid=0 groups=0\n/\n", "",
			0},
		{"a process of its own", unitask.Request{Image: "test/box:1", Exec: true, FreshProcess: true}, "",
			"uid=0(root) gid=0 groups=0\n/\n", "", 0},
		{"entry point and command", unitask.Request{Image: "docker.io/test/app:1", Exec: true}, "", "entry of its own\n", "",
			0},
		{"entry point and arguments", unitask.Request{Image: "test/app:1", Exec: true, Args: []string{"a  b", ""}}, "",
			"entry a  b \n", "", 0},
		{"user, groups, folder", unitask.Request{Image: "test/app:1", Language: "shell",
			Code: "id; touch /etc/x; cat /secret; echo $HOME $A"}, "",
			"uid=1234(app) gid=1235(app) groups=77(more),1235(app)\n/home/app\n", "Permission denied", 0},
		{"volumes", sh("stat -c '%A %u %g %n' /data /data/deep; ls -A /data/deep; cat /etc/group | wc -l"), "",
			"drwxr-xr-x 0 0 /data\ndrwxr-xr-x 0 0 /data/deep\n2\n", "", 0},
		{"variables", with(sh("echo $A $B $HOME $PATH"),
			func(r *unitask.Request) { r.Env = map[string]string{"B": "c", "HOME": "/h"} }), "", "b c c /h /bin\n", "", 0},
		{"standard input", sh("cat; exit 7"), "in\n", "in\n", "", 7},
		{"shell code", unitask.Request{Image: "test/box:1", Language: "shell", Code: "echo $0 $1", Args: []string{"x"}}, "",
			"/work/code.sh x\n", "", 0},
		{"a language that it has not", unitask.Request{Image: "test/box:1", Language: "python", Code: "print(1)"}, "", "",
			"python3: the image has no such program", 127},
		{"no such program", unitask.Request{Image: "test/box:1", Exec: true, Args: []string{"nosuch"}}, "", "",
			"nosuch: the image has no such program", 127},
		{"no program", unitask.Request{Image: "test/box:1", Exec: true, Args: []string{"/etc/passwd"}}, "", "",
			"Permission denied", 126},
		{"a file of the host", with(sh("cat "+note+"; cat /etc/resolv.conf | head -1; ls -l /init"),
			func(r *unitask.Request) { r.Files = []unitask.Mount{{Host: note}} }), "",
			"a note\nnameserver 10.0.2.2\n", "/init: No such file", 1},
		{"a folder of the host is the user's", unitask.Request{Image: "test/app:1", Language: "shell",
			Code: "stat -c '%u %n' /given /given/note; touch /given/more && echo on",
			Dirs: []unitask.Mount{{Host: filepath.Dir(note), Guest: "/given"}}}, "", "1234 /given\n1234 /given/note\non\n", "",
			0},
		{"the image stays as it was", sh("rm -rf /etc /home; echo > /bin/entry; ls /bin/entry"), "", "/bin/entry\n", "", 0},
		{"what a container has",
			sh("ls /dev; ls -d /proc/1 /sys/class /dev/shm; echo x > /dev/shm/x; cat /dev/shm/x; stat -c %a /tmp"), "",
			"fd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero\n/dev/shm\n/proc/1\n" +
				"/sys/class\n" +
				"x\n1777\n", "", 0},
		// Attempts to leave the image, by the root of the image.
		{
			name: "privileges",
			req: sh("mknod /tmp/m c 1 1; mount -t tmpfs x /tmp; umount /proc; echo x > /proc/sys/kernel/core_pattern; " +
				"echo c > /proc/sysrq-trigger; echo on"),
			stdout: "on\n",
			stderr: "not permitted",
		},
		{"init is not to be seen",
			sh("cat /proc/1/cmdline | head -c 2; kill -9 1; ls /image /stage /modules /unitask/lib; echo on"), "", "shon\n",
			"No such file", 0},
		{"a root in the root", sh("mkdir /tmp/r; ln -s /bin /tmp/r/bin; chroot /tmp/r/../../../.. /bin/ls -d /stage /init"),
			"", "", "No such file", 1},
		{"processes of the image's root", with(sh("for n in 1 2 3 4 5 6; do sleep 5 & done; echo on"),
			func(r *unitask.Request) { r.MaxProcesses = 4 }), "", "", "can't fork: Resource temporarily unavailable", 2},
		{"everything is killed", sh("sleep 1000 & kill -9 -1; echo on; exit 3"), "", "on\n", "", 3},
		{"words for the agent", sh("for n in 3 4 5 32 33; do echo RSWN >&$n; done; echo on"), "", "on\n", "", 0},
		{"/out is a link", sh("rm -r /out; ln -s /proc /out"), "", "", "", 0},
		{"no descriptors of the machine", sh("ls /proc/$$/fd; :"), "", "0\n1\n2\n", "", 0},
	}
}

func TestContainers(t *testing.T) {
	needClones(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	for name, config := range map[string]map[string]any{
		"test/box:1": {"Cmd": []string{"sh", "-c", "id; pwd"}, "Env": []string{"PATH=/bin", "A=b c"},
			"Volumes": map[string]any{"/data/deep": map[string]any{}, "/etc": map[string]any{}}},
		"test/app:1": {"User": "app", "WorkingDir": "/srv/x", "Entrypoint": []string{"/bin/entry"},
			"Cmd": []string{"of", "its own"}, "Env": []string{"PATH=/bin"}},
	} {
		if _, err := rt.Catalog().Import(t.Context(), boxImage(t, name, config), "", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Image: name}); err != nil {
			t.Fatal(err)
		}
	}
	sh := func(script string) unitask.Request {
		return unitask.Request{Image: "test/box:1", Exec: true, Args: []string{"sh", "-c", script}}
	}
	with := func(req unitask.Request, change func(*unitask.Request)) unitask.Request {
		change(&req)
		return req
	}
	note := filepath.Join(t.TempDir(), "note")
	if err := os.WriteFile(note, []byte("a note\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range containersRows(sh, with, note) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			res, err := rt.Run(t.Context(), c.req, unitask.IO{Stdin: strings.NewReader(c.stdin)})
			if err != nil {
				t.Fatal(err)
			}
			if string(res.Stdout) != c.stdout || !strings.Contains(string(res.Stderr), c.stderr) || res.ExitCode != c.exit {
				t.Errorf("exit %d, stdout %q, stderr %q; want %d, %q, %q", res.ExitCode, res.Stdout, res.Stderr, c.exit, c.stdout,
					c.stderr)
			}
			if res.Cloned == c.req.Cold && !c.req.FreshProcess || res.Kernel != image.Linux {
				t.Errorf("cloned %v, kernel %s", res.Cloned, res.Kernel)
			}
			if len(res.Artifacts) > 0 {
				t.Errorf("%d artifacts", len(res.Artifacts))
			}
			if c.name != "entry point and arguments" {
				return
			}
			again, err := rt.History().Request(res.RunID, "")
			if err != nil {
				t.Fatal(err)
			}
			if res, err = rt.Run(t.Context(), again, unitask.IO{}); err != nil || string(res.Stdout) != c.stdout {
				t.Errorf("replayed: %q, %v", res.Stdout, err)
			}
		})
	}
}

// An image whose links lead to the kernel's own files when a run begins.
func TestContainersOfLinks(t *testing.T) {
	needClones(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	config := map[string]any{"Env": []string{"PATH=/bin"}, "WorkingDir": "/own/x",
		"Cmd": []string{"cat", "/proc/sys/kernel/core_pattern"}}
	if _, err := rt.Catalog().Import(t.Context(), boxImage(t, "test/links:1", config, [2]string{"own", "/proc/1/root"},
		[2]string{"kernel", "/proc/sys/kernel"}), "", ""); err != nil {
		t.Fatal(err)
	}
	// The working folder was made in the image, and is elsewhere in the machine.
	slot(t)
	req := unitask.Request{Image: "test/links:1", Exec: true, Cold: true}
	res, err := rt.Run(t.Context(), req, unitask.IO{})
	if err != nil || res.ExitCode != 126 ||
		string(res.Stderr) != "unitask: the working directory /own/x: No such file or directory\n" {
		t.Errorf("%v, %+v", err, res)
	}
	pattern := filepath.Join(t.TempDir(), "core_pattern")
	if err := os.WriteFile(pattern, []byte("|/bin/entry\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	req.Dir, req.Files = "/tmp", []unitask.Mount{{Host: pattern, Guest: "/kernel/core_pattern"}}
	if _, err = rt.Run(t.Context(), req, unitask.IO{}); err == nil ||
		!strings.Contains(err.Error(), "cannot create /kernel/core_pattern: Read-only file system") {
		t.Errorf("a file in the place of the kernel's: %v", err)
	}
}

// Requests that are refused before anything runs.
func TestContainerRequests(t *testing.T) {
	offline := true
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), Offline: &offline})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, c := range []struct {
		req         unitask.Request
		field, want string
	}{
		{unitask.Request{Exec: true, Args: []string{"ls"}}, "exec", "name one"},
		{unitask.Request{Image: "python", Exec: true}, "exec", "name one"},
		{unitask.Request{Image: "alpine:3", Exec: true, Code: "1"}, "exec", "leave out code"},
		{unitask.Request{Image: "alpine:3", Exec: true, Kernel: image.Nanos}, "kernel", "use linux"},
		{unitask.Request{Image: "Alpine:3", Exec: true}, "image", "small letters"},
		{unitask.Request{Image: "../etc:1", Exec: true}, "image", "no reference"},
		{unitask.Request{Image: "sha256:12", Exec: true}, "image", "no digest"},
		{unitask.Request{Image: "alpine", Code: "1"}, "image", "with its tag"},
		{unitask.Request{Image: "alpine:3", Exec: true, Args: []string{""}}, "args", "no command"},
		{unitask.Request{Image: "alpine:3", Code: "1", NodeArgs: []string{"--expose-gc"}}, "nodeArgs", "--exec"},
	} {
		_, err := rt.Run(t.Context(), c.req, unitask.IO{})
		var wrong *policy.FieldError
		if !errors.As(err, &wrong) || wrong.Field != c.field || !strings.Contains(wrong.Reason, c.want) {
			t.Errorf("%+v: got %v", c.req, err)
		}
	}
	_, _, err = rt.Trace(t.Context(), unitask.Caller{}, unitask.Request{Image: "alpine:3", Exec: true}, unitask.IO{},
		unitask.Trace{Syscalls: true})
	if err == nil || !strings.Contains(err.Error(), "strace in the image") {
		t.Errorf("traced: %v", err)
	}
	if _, err := rt.Run(t.Context(), unitask.Request{Image: "localhost:1/a:1", Exec: true}, unitask.IO{}); !errors.Is(err,
		image.ErrOffline) || !strings.Contains(err.Error(), "unitask image pull") {
		t.Errorf("offline: %v", err)
	}
}
