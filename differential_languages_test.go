package unitask_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/guest/shell"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testroot"
	"github.com/unitask/unitask/internal/testsignals"
)

// The differential tests of the other languages. The image's program runs every script of a folder on the host and in a
// clone. Stdout, stderr and the exit code must be the same, byte for byte. The folder's exceptions.toml lists the
// differences, with reasons.

// tongue is a language with a program on the host.
type tongue struct {
	name, ext string
	least     int      // the lowest number of scripts
	parts     []string // the parts with program, for a root on the host, if not nil
	program   string   // its path in the guest
	// prepare, if not nil, returns a replacement for the program, with arguments and variables.
	prepare func(t *testing.T) (program string, args, env []string)
	// random, if not nil, matches text of a program's stderr that differs between two runs on one host.
	random *regexp.Regexp
	nanos  bool // it also runs on Nanos
	twice  bool // each script runs a second time, with the program compiled the first time
	late   bool // make long runs all of it; otherwise make test runs one in three scripts
	args   map[string][]string
	stdin  map[string]string
}

var tongues = []tongue{
	{
		name: "python", ext: ".py", least: 140, parts: python.Parts, program: "/usr/bin/python3", nanos: true,
		args: map[string][]string{"argv.py": {"one", "--two=3", "", "with space", "ünïcödé"}},
		stdin: map[string]string{
			"stdin-read.py": "hello\nünï", "stdin-lines.py": "a\nb\r\nlast", "stdin-input.py": "first\nsecond\nthird",
			"stdin-binary.py":   strings.Repeat("0123456789", 30000),
			"stdin-bad-utf8.py": "a\xff\xfeb\n", "stdin-unread.py": "unread", "stdin-fd.py": "abcdef",
			"subprocess-inherit.py": "for the child", "lib-pdb.py": "p x\nn\nc\n",
		},
	},
	{
		name: "shell", ext: ".sh", least: 60, parts: shell.Parts, program: "/usr/bin/bash",
		args: map[string][]string{"args.sh": {"one", "--two=3", "", "with space", "ünïcödé"}},
		stdin: map[string]string{
			"stdin-read.sh": "a b\n c\\d \nlast", "stdin-cat.sh": strings.Repeat("0123456789", 30000),
			"stdin-mapfile.sh": "x y\nü\n", "stdin-unread.sh": "unread",
			"stdin-child.sh": "one\ntwo\nthree\n",
		},
	},
	{
		name: "go", ext: ".go", least: 30, prepare: vendoredGo, twice: true, late: true,
		random: regexp.MustCompile(`goroutine \d+|0x[0-9a-f]+`),
		args:   map[string][]string{"args.go": {"one", "--two=3", "", "with space", "ünïcödé", "-x"}},
		stdin:  map[string]string{"stdin-lines.go": "a\nb\r\nlast", "stdin-all.go": strings.Repeat("0123456789", 30000)},
	},
}

// vendoredGo is the image's toolchain on the host, because messages of another version differ. It has a copy of the
// image's build cache and, as in the machine, no C compiler.
func vendoredGo(t *testing.T) (program string, args, env []string) {
	root := filepath.Join(baseHome, "vendor", string(image.HostArch()), "go/root/usr/local/go")
	cache := t.TempDir()
	if err := os.CopyFS(cache, os.DirFS(filepath.Join(root, "cache"))); err != nil {
		t.Fatalf("%v\n`unitask image vendor --image go` fetches what is missing", err)
	}
	return filepath.Join(root, "bin/go"), []string{"run"},
		[]string{"GOCACHE=" + cache, "GOENV=off", "GOTOOLCHAIN=local", "GOPROXY=off", "CGO_ENABLED=0"}
}

func TestDifferentialLanguages(t *testing.T) {
	needClones(t)
	for _, l := range tongues {
		t.Run(l.name, func(t *testing.T) { l.differential(t, image.Linux) })
		if l.nanos {
			t.Run(l.name+"-nanos", func(t *testing.T) {
				needNanos(t, image.HostArch())
				l.differential(t, image.Nanos)
			})
		}
	}
}

func (l tongue) differential(t *testing.T, kernel image.Kernel) {
	if l.late && !long() {
		t.Skip("its template takes half a minute: make long; the program of docs/languages.md runs here")
	}
	dir := filepath.Join("testdata/differential", l.name)
	scripts, err := filepath.Glob(filepath.Join(dir, "*"+l.ext))
	if err != nil || len(scripts) < l.least {
		t.Fatalf("only %d scripts: %v", len(scripts), err)
	}
	exceptions := exceptionsOf(t, dir)
	testsignals.Default(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Kernel: kernel, Image: l.name}); err != nil {
		t.Fatal(err)
	}
	var args, env []string
	root := ""
	if l.prepare != nil { // now that the parts exist
		l.program, args, env = l.prepare(t)
	} else {
		root = testroot.Make(t, filepath.Join(baseHome, "vendor", string(image.HostArch())), l.parts)
	}
	var booted atomic.Int32
	t.Run("scripts", func(t *testing.T) {
		for i, script := range scripts {
			if !runsNow(l.late || i%5 != 0) {
				continue
			}
			name := filepath.Base(script)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				slot(t)
				text, err := os.ReadFile(script)
				if err != nil {
					t.Fatal(err)
				}
				want := ranOnHost(t, root, l.program, filepath.Base(l.program), "/home/user", name, string(text), args, env,
					l.args[name], l.stdin[name])
				except := exceptionFor(exceptions, kernel, name)
				ways := l.inGuest(t, rt, kernel, name, string(text), except)
				if l.prepare != nil { // a trace names Go's sources, which have another path on the host
					want.stderr = strings.ReplaceAll(want.stderr, filepath.Dir(filepath.Dir(l.program)), "/usr/local/go")
				}
				for _, way := range ways {
					got := way.outcome
					if l.random != nil {
						want.stderr = l.random.ReplaceAllString(want.stderr, "…")
						got.stderr = l.random.ReplaceAllString(got.stderr, "…")
					}
					compare(t, except, want, got)
					if !way.cloned {
						booted.Add(1)
					}
				}
			})
		}
	})
	// On a busy host, a machine boots if a clone does not start in time.
	if n := int(booted.Load()); n > len(scripts)/8 {
		t.Errorf("%d of %d machines were no clones", n, len(scripts)/2)
	}
}

// exceptionsOf reads a folder's exceptions.
func exceptionsOf(t *testing.T, dir string) []exception {
	t.Helper()
	var file struct {
		Exception []exception `toml:"exception"`
	}
	meta, err := toml.DecodeFile(filepath.Join(dir, "exceptions.toml"), &file)
	if err != nil {
		t.Fatal(err)
	}
	if extra := meta.Undecoded(); len(extra) > 0 {
		t.Fatalf("%s: unknown key %v", dir, extra)
	}
	for _, e := range file.Exception {
		if e.Reason == "" || e.Script == "" {
			t.Fatalf("%s: an exception wants a script and a reason: %+v", dir, e)
		}
		if _, err := os.Stat(filepath.Join(dir, e.Script)); err != nil {
			t.Fatal(err)
		}
	}
	return file.Exception
}

// way is a way to run a script in a guest, and how the script ended.
type way struct {
	outcome
	cloned bool
}

// inGuest runs a script, and a second time if its language can then use the compiled program.
func (l tongue) inGuest(t *testing.T, rt *unitask.Runtime, kernel image.Kernel, name, text string,
	except *exception) (ways []way) {
	t.Helper()
	path, timeout := place(t, name, text), differentialTimeout
	if except != nil && except.Timeout > 0 {
		timeout = time.Duration(except.Timeout) * time.Second
	}
	run := func() string {
		var out, errs bytes.Buffer
		res, err := rt.Run(t.Context(), unitask.Request{
			Code: text, Path: path, Dir: filepath.Dir(path), Args: l.args[name], Kernel: kernel, Timeout: timeout,
		}, unitask.IO{Stdin: strings.NewReader(l.stdin[name]), Stdout: &out, Stderr: &errs})
		if err != nil {
			t.Fatalf("run: %v", err)
		}
		ways = append(ways, way{outcome{normalize(out.String(), path), normalize(errs.String(), path), res.ExitCode},
			res.Cloned})
		return res.Compiled
	}
	first := run()
	if !l.twice {
		return ways
	}
	want, again := unitask.CompiledKept, unitask.CompiledCached
	if strings.HasPrefix(name, "compile-") || name == "cgo.go" { // no program was built
		want, again = "", ""
	}
	if second := run(); first != want || second != again {
		t.Errorf("compiled %q, then %q; want %q, %q", first, second, want, again)
	}
	return ways
}
