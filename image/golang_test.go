package image

import (
	"archive/zip"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/mod/sumdb/dirhash"

	"github.com/unitask/unitask/internal/attack"
)

const goModule = "golang.org/toolchain@v1/"

// goZip writes a module's zip, and its lock entry. It has another architecture than this machine's, for which nothing
// is compiled.
func goZip(t *testing.T, files map[string]string) (LockedPart, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "go.zip")
	f, err := os.Create(file)
	must(t, err)
	z := zip.NewWriter(f)
	for name, text := range files {
		w, err := z.Create(name)
		must(t, err)
		_, err = w.Write([]byte(text))
		must(t, err)
	}
	must(t, z.Close())
	must(t, f.Close())
	p := LockedPart{Name: goPart, Arch: AMD64, From: "go", Package: "golang.org/toolchain", Version: "v1"}
	if HostArch() == AMD64 {
		p.Arch = ARM64
	}
	p.Digest, err = dirhash.HashZip(file, dirhash.Hash1)
	must(t, err)
	return p, file
}

func TestUnpackGo(t *testing.T) { // the umask applies to the whole process, so this test is not parallel
	before := syscall.Umask(0o022)
	defer syscall.Umask(before)
	s := fakeStore(t)
	p, file := goZip(t, map[string]string{
		goModule + "bin/go": "go", goModule + "pkg/tool/linux_amd64/compile": "compile", goModule + "pkg/include/x.h": "h",
		goModule + "src/fmt/print.go":      "fmt",
		goModule + "src/fmt/print_test.go": "test", goModule + "src/cmd/go/main.go": "cmd",
		goModule + "src/fmt/testdata/x": "data", goModule + "LICENSE": "L", goModule + "VERSION": "V",
		goModule + "src/go.mod": "m", goModule + "lib/time/zoneinfo.zip": "z", goModule + "lib/wasm/x": "w",
		goModule + "test/x": "x",
	})
	must(t, checkGoZip(p, file))
	dir := t.TempDir()
	must(t, s.Parts().unpackGo(t.Context(), p, file, dir))
	for name, mode := range map[string]os.FileMode{
		"bin/go": 0o755, "pkg/tool/linux_amd64/compile": 0o755, "pkg/include/x.h": 0o644, "src/fmt/print.go": 0o644,
		"src/go.mod": 0o644, "lib/time/zoneinfo.zip": 0o644, "VERSION": 0o644,
		"src/fmt/print_test.go": 0, "src/cmd/go/main.go": 0, "src/fmt/testdata/x": 0, "lib/wasm/x": 0, "test/x": 0,
	} {
		st, err := os.Stat(filepath.Join(dir, goRoot, name))
		if mode == 0 && err == nil || mode != 0 && (err != nil || st.Mode() != mode) {
			t.Errorf("%s: %v %v", name, st, err)
		}
	}
	// Contents that differ from the lock's sum.
	p.Digest = "h1:AAAA"
	if err := checkGoZip(p, file); err == nil || !strings.Contains(err.Error(), "vendor.lock says h1:AAAA") {
		t.Error(err)
	}
}

// Files outside the module leave nothing.
func TestAttackUnpackGo(t *testing.T) {
	s := fakeStore(t)
	for _, name := range []string{"../escaped", goModule + "../../escaped", goModule + "bin/../../../escaped", "/escaped",
		"other/bin/go", goModule + "bin//go"} {
		p, file := goZip(t, map[string]string{goModule + "LICENSE": "L", name: "x"})
		dir := filepath.Join(t.TempDir(), "part")
		must(t, os.Mkdir(dir, 0o755))
		err := s.Parts().unpackGo(t.Context(), p, file, dir)
		refused := err != nil && strings.Contains(err.Error(), "is no file of the module")
		got := fmt.Sprint("refused ", refused, ", outside ", glob(filepath.Join(filepath.Dir(dir), "escaped*")))
		attack.Check(t, "Go's module has a file "+name, "refused true, outside []", got)
	}
	// A file with a size that is too small.
	p, file := goZip(t, map[string]string{goModule + "LICENSE": strings.Repeat("x", 1<<20)})
	text, err := os.ReadFile(file)
	must(t, err)
	// 1 MiB in the directory and the descriptor
	short := strings.ReplaceAll(string(text), "\x00\x00\x10\x00", "\x01\x00\x00\x00")
	must(t, os.WriteFile(file, []byte(short), 0o644))
	if err := s.Parts().unpackGo(t.Context(), p, file, t.TempDir()); err == nil && short != string(text) {
		t.Error("a file with a length that is not its own was taken")
	}
}

// Without the go command, or if it fetches nothing or prints invalid output, the error names it.
func TestGoDownloadFails(t *testing.T) {
	p := LockedPart{Name: goPart, Package: "golang.org/toolchain", Version: "v1"}
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	if _, err := goDownload(t.Context(), p, t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "go is not on this machine") || !strings.Contains(err.Error(), "--from DIR") {
		t.Error(err)
	}
	for script, says := range map[string]string{
		"#!/bin/sh\nexit 0\n": "go mod download golang.org/toolchain@v1",
		"#!/bin/sh\necho '{\"Error\": \"proxy says no\"}'; exit 1\n": "exit status 1",
		"#!/bin/sh\necho '{\"Zip\": \"/no/such.zip\"}'\n":            "no/such.zip",
		"#!/bin/sh\necho nonsense\n":                                 "invalid character",
	} {
		must(t, os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o755))
		if _, err := goDownload(t.Context(), p, t.TempDir()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", script, err)
		}
	}
}

// The output of `go run -n` becomes commands for the guest. An unknown command is an error, so no program is compiled
// differently than by go.
func TestGoRunCommands(t *testing.T) {
	const compile = `/root/go/pkg/tool/linux_amd64/compile -o $WORK/b001/_pkg_.a -trimpath "$WORK/b001=>" -p main ` +
		`-buildid bMB9n1lqtjf0-1GNkj0c/bMB9n1lqtjf0-1GNkj0c -importcfg $WORK/b001/importcfg -pack /tmp/x.go` + "\n"
	const link = `GOROOT='/root/go' /root/go/pkg/tool/linux_amd64/link -o $WORK/b001/exe/x -importcfg ` +
		`$WORK/b001/importcfg.link -s -buildid=qu9MFLw9Ju50jWfuoTnJ/bMB9n1lqtjf0-1GNkj0c/` +
		`bMB9n1lqtjf0-1GNkj0c/qu9MFLw9Ju50jWfuoTnJ $WORK/b001/_pkg_.a` + "\n"
	const info, other = `modinfo "0w\xaf path"` + "\n",
		"mkdir -p $WORK/b001/\n\n#\n# x\n#\n\ncat >$WORK/b001/importcfg << 'EOF' # internal\n# import config\nEOF\ncd /tmp\n"
	commands, about, err := goRunCommands(other+compile+info+link+"$WORK/b001/exe/x\n", "/root/go", "/tmp/x.go")
	want := `/usr/local/go/pkg/tool/linux_amd64/compile
-o
$WORK/b001/_pkg_.a
-trimpath
$WORK/b001=>
-p
main
-buildid
$ID
-importcfg
/usr/local/go/direct/importcfg
-pack
$FILE

/usr/local/go/pkg/tool/linux_amd64/link
-o
$WORK/b001/exe/$NAME
-importcfg
/usr/local/go/direct/importcfg.link
-s
-buildid=$ID
$WORK/b001/_pkg_.a
`
	if err != nil || commands != want || about != info {
		t.Errorf("%v %q, not %q, %q", err, commands, want, about)
	}
	quoted := strings.NewReplacer("/root/go/pkg/tool/linux_amd64/compile", `"/root/g o/pkg/tool/linux_amd64/compile"`,
		"/root/go/pkg/tool/linux_amd64/link", `"/root/g o/pkg/tool/linux_amd64/link"`).Replace(compile + info + link)
	if again, _, err := goRunCommands(quoted, "/root/g o", "/tmp/x.go"); err != nil || again != want {
		t.Errorf("%v %q, not %q", err, again, want)
	}
	for name, said := range map[string]string{
		"nothing":           "",
		"no compiler":       info + link,
		"no linker":         compile + info,
		"no modinfo":        compile + link,
		"an assembler":      compile + info + strings.Replace(compile, "/compile", "/asm", 1) + link,
		"two compilers":     compile + compile + info + link,
		"another file":      strings.Replace(compile, "/tmp/x.go", "/tmp/y.go", 1) + info + link,
		"another build id":  strings.Replace(compile, "-1GNkj0c/", "/", 1) + info + link,
		"another folder":    compile + info + strings.Replace(link, "b001/exe", "b002/exe", 1),
		"a setting":         compile + info + strings.Replace(link, " -s ", " -X=runtime.godebugDefault=panicnil=1 ", 1),
		"a module's":        compile + strings.Replace(info, "path", "build DefaultGODEBUG=panicnil=1", 1) + link,
		"another importcfg": strings.Replace(compile, "b001/importcfg", "b001/cfg", 1) + info + link,
	} {
		if got, _, err := goRunCommands(said, "/root/go", "/tmp/x.go"); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// `go run -n` gives the same below a module, for example if a home is inside a project.
func TestAskGoRun(t *testing.T) {
	home, err := os.UserHomeDir()
	must(t, err)
	// As internal/testhome, which imports this package.
	part := filepath.Join(cmp.Or(os.Getenv("UNITASK_TEST_HOME"), filepath.Join(home, ".unitask")), "vendor",
		string(HostArch()), goPart)
	if !exists(filepath.Join(part, goRoot, "bin/go")) || !compilesGo(HostArch()) {
		t.Skip("no Go for this host in the vendor store: unitask image vendor --image go")
	}
	answers := map[string]string{}
	for _, module := range []string{"", "module x\n\ngo 1.20\n", "module x\n\ngo 1.99\n"} {
		above := t.TempDir()
		tmp, made := filepath.Join(above, "a b"), filepath.Join(above, "made")
		must(t, os.Mkdir(tmp, 0o755))
		must(t, os.Mkdir(made, 0o755))
		if module != "" {
			must(t, os.WriteFile(filepath.Join(above, "go.mod"), []byte(module), 0o644))
		}
		must(t, askGoRun(t.Context(), filepath.Join(part, goRoot), filepath.Join(part, goCache), tmp, made))
		for _, name := range []string{"commands", "importcfg", "importcfg.link", "id"} {
			text, err := os.ReadFile(filepath.Join(made, name))
			must(t, err)
			if first, ok := answers[name]; !ok {
				answers[name] = string(text)
			} else if string(text) != first || len(text) == 0 {
				t.Errorf("below %q: %s is %.500q, else %.500q", module, name, text, first)
			}
		}
	}
	if strings.Contains(answers["importcfg"], "internal/") ||
		!strings.Contains(answers["importcfg.link"], "packagefile internal/abi=/usr/local/go/cache/") ||
		!strings.Contains(answers["importcfg"], "packagefile fmt=/usr/local/go/cache/") {
		t.Errorf("%.500s\n%.500s", answers["importcfg"], answers["importcfg.link"])
	}
}
