package unitask_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testwait"
)

// needNanos skips the test if no Nanos kernel was vendored.
func needNanos(t *testing.T, arch image.Arch) {
	t.Helper()
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: baseHome})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, err := rt.Images().Parts().Get(arch, "nanos"); err != nil {
		t.Skipf("no Nanos kernel for %s in the vendor store: it is in no package; "+
			"unitask image vendor --nanos, or --from DIR", arch)
	}
}

// TestNanos tests the fixed differences from Linux, and the unfixed ones in the table of docs/images.md.
func TestNanos(t *testing.T) {
	needNanos(t, image.HostArch())
	home := newHome(t)
	programs := testarchive.Open(t, "testdata/nanos.txtar")
	for name, want := range map[string]string{
		"processors":    "1",
		"memory":        "true 344",
		"interfaces":    "[ 'en1', 'lo0' ]",
		"parent":        "1",
		"environment":   "[ 'HOME', 'LANG', 'PATH' ]",
		"name":          "Nanos unitask root",
		"child, sync":   "ENOSYS",
		"child, async":  "ENOSYS",
		"localhost":     "null 127.0.0.1",
		"refused":       "ECONNREFUSED",
		"clock":         "true",
		"writable":      "all",
		"read-only":     "EACCES\nEACCES\nEACCES\nEACCES",
		"one user":      "done EPERM EPERM EPERM done 0 [ 0 ]",
		"owners":        "7 8",
		"not its own":   "EPERM EPERM EPERM",
		"priority":      "5",
		"long datagram": "EMSGSIZE",
		"no terminal":   "ENXIO",
		// A stream whose other end is in another thread: the kernel does not report new room or its end.
		"streams between threads":          "3145728",
		"own SIGTERM":                      "caught",
		"a worker says nothing of its own": "1",
		// QEMU has the disk read-only, so the kernel's log flushes fail. Written data must still be there after several
		// flushes.
		"scratch survives": "true",
	} {
		code := programs.Text(name + ".js")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			code := strings.ReplaceAll(code, "NOW", "Date.parse('"+time.Now().UTC().Format(time.RFC3339)+"')")
			res, err := unitask.Run(t.Context(), unitask.Request{Code: code, Kernel: image.Nanos, Timeout: 30 * time.Second},
				unitask.Options{Home: home})
			if err != nil || string(res.Stdout) != want+"\n" || len(res.Stderr) > 0 {
				t.Errorf("%v\nstdout %q, want %q\nstderr %q", err, res.Stdout, want, res.Stderr)
			}
		})
	}
}

// A program that fails after it used something missing on Nanos is told which kernel has it.
func TestNanosHint(t *testing.T) {
	needNanos(t, image.HostArch())
	home := newHome(t)
	for name, c := range map[string]struct{ code, want string }{
		"a child": {`require("child_process").spawnSync("ls"); process.exit(1)`,
			"the code asked for child processes, which the nanos kernel does not have: --kernel linux does"},
		"a child, and no harm": {`require("child_process").spawnSync("ls")`, ""},
		"a name": {`require("fs").mkdirSync(Buffer.from("/tmp/\xff", "latin1"))`,
			"the code asked for names that are not UTF-8 text, which the nanos kernel does not have: --kernel linux does"},
		"a failure of another kind": {`throw new Error("spawn ENOSYS")`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			res, err := unitask.Run(t.Context(), unitask.Request{Code: c.code, Kernel: image.Nanos}, unitask.Options{Home: home})
			if err != nil || res.Hint() != c.want {
				t.Errorf("%v %q, want %q\nstderr %q", err, res.Hint(), c.want, res.Stderr)
			}
		})
	}
}

// Each kernel accepts as many small files as documented. More are refused before a machine starts, with a remedy.
func TestManySmallFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 10_000 {
		if i%1000 == 0 {
			if err := os.Mkdir(filepath.Join(dir, strconv.Itoa(i/1000)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i/1000), strconv.Itoa(i)), []byte("small"),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	for kernel, c := range map[image.Kernel]struct {
		memory int
		want   string
	}{
		image.Nanos: {252,
			"memoryMb 251: has no room for 10011 files, which take 82 MiB of a machine: memoryMb 252 would do"},
		image.Linux: {190,
			"memoryMb 189: has no room for 10011 files, which take 51 MiB of a machine: memoryMb 190 would do"},
	} {
		t.Run(string(kernel), func(t *testing.T) {
			if kernel == image.Nanos {
				needNanos(t, image.HostArch())
			} else {
				needVM(t)
			}
			req := unitask.Request{Kernel: kernel, MemoryMB: c.memory - 1, Dirs: []unitask.Mount{{Host: dir, Guest: "/many"}},
				Code: `const fs = require("fs"); let n = 0; ` +
					`for (const d of fs.readdirSync("/many")) for (const f of fs.readdirSync("/many/" + d)) n += ` +
					`fs.readFileSync("/many/" + d + "/" + f).length; console.log(n)`}
			if _, _, err := unitask.Resolve(req, nil); err == nil || err.Error() != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
			req.MemoryMB, req.Timeout = c.memory, 5*time.Minute // the memory is the limit; a busy host may be slow
			res, err := unitask.Run(t.Context(), req, unitask.Options{Home: newHome(t)})
			if err != nil || string(res.Stdout) != "50000\n" {
				t.Errorf("%v %+v", err, res)
			}
		})
	}
}

// A kernel that runs out of memory says so.
func TestNanosDeath(t *testing.T) {
	needNanos(t, image.HostArch())
	res, err := unitask.Run(t.Context(), unitask.Request{Kernel: image.Nanos, MemoryMB: 160,
		Code: `console.log("up"); const a = []; for (;;) a.push(Buffer.alloc(5e6, 1))`},
		unitask.Options{Home: newHome(t), Machines: unitask.Booted()})
	if err != nil || res.Outcome != unitask.OutcomeOOM || res.ExitCode != 137 || string(res.Stdout) != "up\n" {
		t.Errorf("%v %+v", err, res)
	}
}

// TestOtherArch boots a machine of the other architecture than the host's.
func TestOtherArch(t *testing.T) {
	t.Parallel()
	needVM(t)
	arch, qemu := image.ARM64, "qemu-system-aarch64"
	if image.HostArch() == image.ARM64 {
		arch, qemu = image.AMD64, "qemu-system-x86_64"
	}
	if _, err := exec.LookPath(qemu); err != nil {
		t.Skipf("no %s on PATH: hack/setup --test installs it", qemu)
	}
	rt, err := unitask.Open(unitask.Options{Home: baseHome})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, kernel := range []image.Kernel{image.Linux, image.Nanos} {
		t.Run(string(kernel), func(t *testing.T) {
			if kernel == image.Nanos {
				needNanos(t, arch)
			}
			if _, err := rt.Images().Ensure(t.Context(), kernel, arch); errors.Is(err, image.ErrNotVendored) {
				t.Skipf("%v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel, Arch: arch,
				Code: `console.log(process.arch, process.argv.length); process.exit(7)`, Args: []string{"x"}},
				unitask.Options{Home: newHome(t)})
			want := map[image.Arch]string{image.ARM64: "arm64 3\n", image.AMD64: "x64 3\n"}[arch]
			if err != nil || string(res.Stdout) != want || res.ExitCode != 7 || res.Kernel != kernel {
				t.Errorf("%v %+v %s", err, res, res.Stdout)
			}
		})
	}
}

// A nanos disk is self-contained: it boots by BIOS, without -kernel, and its agent connects.
func TestNanosDiskBoots(t *testing.T) {
	needNanos(t, image.HostArch())
	if image.HostArch() != image.AMD64 {
		t.Skip("arm64 has no BIOS")
	}
	rt, err := unitask.Open(unitask.Options{Home: baseHome})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	im, err := rt.Images().Ensure(t.Context(), image.Nanos, image.HostArch())
	if err != nil {
		t.Fatal(err)
	}
	disk, console := filepath.Join(t.TempDir(), "disk"), filepath.Join(t.TempDir(), "console")
	if err := im.Export(disk); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("qemu-system-x86_64", "-nodefaults", "-display", "none", "-M", "q35", "-cpu", "max", "-m", "512",
		"-accel", "tcg",
		"-drive", "file="+disk+",format=raw,if=none,id=d", "-device", "virtio-blk-pci,drive=d",
		"-netdev", "user,id=n,restrict=on", "-device", "virtio-net-pci,netdev=n", "-serial", "file:"+console)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var text []byte
	if !testwait.Holds(time.Minute, func() bool {
		text, _ = os.ReadFile(console)
		return strings.Contains(string(text), "en1: assigned")
	}) {
		t.Errorf("no sign of life: %q", text)
	}
}
