package unitask_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// needNanos skips, by name, where no Nanos kernel was vendored.
func needNanos(t *testing.T, arch image.Arch) {
	t.Helper()
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: baseHome})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, err := rt.Images().Part(arch, "nanos"); err != nil {
		t.Skipf("no Nanos kernel for %s in the vendor store: it is in no package; unitask image vendor --nanos, or --from DIR", arch)
	}
}

// TestNanos is what differs from Linux and was mended, and what was not and is in
// the table of docs/images.md.
func TestNanos(t *testing.T) {
	needNanos(t, image.HostArch())
	home := newHome(t)
	for name, c := range map[string]struct{ code, want string }{
		"processors":                       {`console.log(require("os").cpus().length)`, "1"},
		"memory":                           {`console.log(process.memoryUsage().rss > 1e6, require("v8").getHeapStatistics().heap_size_limit >> 20)`, "true 344"},
		"interfaces":                       {`console.log(Object.keys(require("os").networkInterfaces()))`, "[ 'en1', 'lo0' ]"},
		"parent":                           {`console.log(process.ppid)`, "1"},
		"environment":                      {`console.log(Object.keys(process.env).sort())`, "[ 'HOME', 'PATH' ]"},
		"name":                             {`const os = require("os"); console.log(os.type(), os.hostname(), os.userInfo().username)`, "Nanos unitask root"},
		"child, sync":                      {`console.log(require("child_process").spawnSync("ls").error.code)`, "ENOSYS"},
		"child, async":                     {`try { require("child_process").spawn("ls") } catch (e) { console.log(e.code) }`, "ENOSYS"},
		"localhost":                        {`require("dns").lookup("localhost", { family: 4 }, (e, a) => console.log(e, a))`, "null 127.0.0.1"},
		"refused":                          {`require("net").connect(9, "127.0.0.1").on("error", (e) => console.log(e.code))`, "ECONNREFUSED"},
		"clock":                            {`console.log(Math.abs(Date.now() - NOW) < 60000)`, "true"},
		"writable":                         {`const fs = require("fs"); for (const p of ["/tmp/x", "y", "/out/z", "/home/user/w"]) fs.writeFileSync(p, "1"); console.log("all")`, "all"},
		"read-only":                        {`const fs = require("fs"); for (const p of ["/etc/passwd", "/usr/bin/node", "/unitask/lib/preload.js", "/new"]) try { fs.writeFileSync(p, "1"); console.log(p) } catch (e) { console.log(e.code) }`, "EACCES\nEACCES\nEACCES\nEACCES"},
		"own SIGTERM":                      {`process.on("SIGTERM", () => { console.log("caught"); process.exit(3) }); process.kill(process.pid, "SIGTERM"); setTimeout(() => {}, 5000)`, "caught"},
		"a worker says nothing of its own": {`const { Worker } = require("worker_threads"); new Worker("console.log(1)", { eval: true })`, "1"},
		// The disk is read-only to QEMU, and the kernel's log flushes fail: what
		// was written must still be there after several of them.
		"scratch survives": {`const fs = require("fs"), c = require("crypto"); const d = c.randomBytes(40e6); fs.writeFileSync("/tmp/big", d);
			setTimeout(() => console.log(fs.readFileSync("/tmp/big").equals(d)), 4000)`, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			code := strings.ReplaceAll(c.code, "NOW", "Date.parse('"+time.Now().UTC().Format(time.RFC3339)+"')")
			res, err := unitask.Run(t.Context(), unitask.Request{Code: code, Kernel: image.Nanos, Timeout: 30 * time.Second}, unitask.Options{Home: home})
			if err != nil || string(res.Stdout) != c.want+"\n" || len(res.Stderr) > 0 {
				t.Errorf("%v\nstdout %q, want %q\nstderr %q", err, res.Stdout, c.want, res.Stderr)
			}
		})
	}
}

// A kernel that dies says why.
func TestNanosDeath(t *testing.T) {
	needNanos(t, image.HostArch())
	res, err := unitask.Run(t.Context(), unitask.Request{Kernel: image.Nanos, MemoryMB: 160, Code: `console.log("up"); const a = []; for (;;) a.push(Buffer.alloc(5e6, 1))`}, unitask.Options{Home: newHome(t), Machines: unitask.Booted()})
	if err != nil || res.Outcome != unitask.OutcomeOOM || res.ExitCode != 137 || string(res.Stdout) != "up\n" {
		t.Errorf("%v %+v", err, res)
	}
}

// TestOtherArch boots a machine of the architecture that the host is not.
func TestOtherArch(t *testing.T) {
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
			res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel, Arch: arch, Code: `console.log(process.arch, process.argv.length); process.exit(7)`, Args: []string{"x"}},
				unitask.Options{Home: newHome(t)})
			want := map[image.Arch]string{image.ARM64: "arm64 3\n", image.AMD64: "x64 3\n"}[arch]
			if err != nil || string(res.Stdout) != want || res.ExitCode != 7 || res.Kernel != kernel {
				t.Errorf("%v %+v %s", err, res, res.Stdout)
			}
		})
	}
}

// A nanos disk stands alone: it boots by BIOS, without -kernel, and its agent
// rings.
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
	cmd := exec.Command("qemu-system-x86_64", "-nodefaults", "-display", "none", "-M", "q35", "-cpu", "max", "-m", "512", "-accel", "tcg",
		"-drive", "file="+disk+",format=raw,if=none,id=d", "-device", "virtio-blk-pci,drive=d",
		"-netdev", "user,id=n,restrict=on", "-device", "virtio-net-pci,netdev=n", "-serial", "file:"+console)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if text, _ := os.ReadFile(console); strings.Contains(string(text), "en1: assigned") {
			return
		}
	}
	text, _ := os.ReadFile(console)
	t.Errorf("no sign of life: %q", text)
}
