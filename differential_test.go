package unitask_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testroot"
)

// The differential test. The vendored node on this host and a machine run every script in testdata/differential.
// Stdout, stderr and the exit code must be the same, byte for byte. testdata/differential/exceptions.toml lists the
// differences, with reasons.

type exception struct {
	Script string   `toml:"script"`
	Kernel []string `toml:"kernel"` // where it applies; none means everywhere
	Reason string   `toml:"reason"`
	// The guest's result instead; a missing field is not compared.
	Exit   *int    `toml:"exit"`
	Stdout *string `toml:"stdout"` // regular expressions
	Stderr *string `toml:"stderr"`
	// Timeout in seconds, for a script that hangs.
	Timeout int `toml:"timeout"`
}

func loadExceptions(t *testing.T) []exception {
	t.Helper()
	var file struct {
		Exception []exception `toml:"exception"`
	}
	meta, err := toml.DecodeFile("testdata/differential/exceptions.toml", &file)
	if err != nil {
		t.Fatal(err)
	}
	if extra := meta.Undecoded(); len(extra) > 0 {
		t.Fatalf("exceptions.toml: unknown key %v", extra)
	}
	for _, e := range file.Exception {
		if e.Reason == "" || e.Script == "" {
			t.Fatalf("exceptions.toml: an exception wants a script and a reason: %+v", e)
		}
		if _, err := os.Stat("testdata/differential/" + e.Script); err != nil {
			t.Fatal(err)
		}
	}
	return file.Exception
}

// Inputs of a script besides its text.
var (
	scriptArgs  = map[string][]string{"process-args.js": {"one", "--two=3", "", "with space", "ünïcödé"}}
	scriptStdin = map[string]string{
		"stdin-echo.js": "hello\n", "stdin-lines.js": "a\nb\nlast", "stdin-sync.js": "all of\nit\n",
		"stdin-async-iter.mjs": strings.Repeat("0123456789", 30000), "stdin-unread.js": "unread",
	}
)

type outcome struct {
	stdout, stderr string
	exit           int
}

func TestDifferential(t *testing.T) {
	needVM(t)
	scripts, err := filepath.Glob("testdata/differential/*.*s")
	if err != nil || len(scripts) < 80 {
		t.Fatalf("only %d scripts: %v", len(scripts), err)
	}
	exceptions := loadExceptions(t)
	home := newHome(t)
	// A quarter of the clones and a few of the cold boots; otherwise the others.
	for _, kernel := range kernels(t) {
		for i := range 2 * len(scripts) {
			script, way, cold := scripts[i/2], "clone", i%2 == 1
			if cold {
				way = "cold"
			}
			if !runsNow(i%8 != 0 && i%64 != 1) {
				continue
			}
			name := filepath.Base(script)
			t.Run(string(kernel)+"/"+way+"/"+name, func(t *testing.T) {
				t.Parallel()
				slot(t)
				text, err := os.ReadFile(script)
				if err != nil {
					t.Fatal(err)
				}
				want := onHost(t, name, string(text))
				except := exceptionFor(exceptions, kernel, name)
				got := inGuest(t, home, kernel, name, string(text), except, cold)
				compare(t, except, want, got)
			})
		}
	}
}

// long reports whether `make long` runs; `make test` leaves these cases out to save minutes.
func long() bool { return os.Getenv("UNITASK_TEST_LONG") != "" }

// runsNow reports whether a case runs. make long runs the rest of a test's cases, and only those (UNITASK_TEST_LONG=1).
// UNITASK_TEST_LONG=all runs all of them.
func runsNow(rest bool) bool {
	if rest {
		return long()
	}
	return os.Getenv("UNITASK_TEST_LONG") != "1"
}

// place puts a script into a folder that has the same path on both sides.
func place(t *testing.T, name, text string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "unitask-diff-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const differentialTimeout = 40 * time.Second

func onHost(t *testing.T, name, text string) outcome {
	t.Helper()
	return ranOnHost(t, "", nodeBinary(), "node", "/root", name, text, nil, nil, scriptArgs[name], scriptStdin[name])
}

// ranOnHost runs a script with a program of the host, in an environment like the guest's. before and env are the
// program's own arguments and variables.
func ranOnHost(t *testing.T, root, program, called, home, name, text string, before, env, args []string,
	stdin string) outcome {
	t.Helper()
	path := place(t, name, text)
	ctx, cancel := context.WithTimeout(t.Context(), differentialTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, slices.Concat(before, []string{path}, args)...)
	cmd.Args[0] = called
	cmd.Dir = filepath.Dir(path)
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "LANG=C.UTF-8"}, env...)
	if root != "" {
		testroot.Into(t, cmd, root)
	}
	cmd.Stdin = io.MultiReader(strings.NewReader(stdin)) // a pipe, as in the guest
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	o := outcome{normalize(out.String(), path), normalize(errs.String(), path), cmd.ProcessState.ExitCode()}
	if o.exit < 0 { // killed by a signal: the code that a shell reports
		o.exit = 128 + signalOf(cmd.ProcessState)
	}
	return o
}

// exceptionFor returns the listed exception for a script and kernel, or nil.
func exceptionFor(list []exception, kernel image.Kernel, name string) *exception {
	for i, e := range list {
		if e.Script == name && (len(e.Kernel) == 0 || contains(e.Kernel, string(kernel))) {
			return &list[i]
		}
	}
	return nil
}

func inGuest(t *testing.T, home string, kernel image.Kernel, name, text string, except *exception, cold bool) outcome {
	t.Helper()
	timeout := differentialTimeout
	if except != nil && except.Timeout > 0 {
		timeout = time.Duration(except.Timeout) * time.Second
	}
	path := place(t, name, text)
	var out, errs bytes.Buffer
	res, err := unitask.Run(t.Context(), unitask.Request{
		Code: text, Path: path, Dir: filepath.Dir(path), Args: scriptArgs[name], Kernel: kernel, Timeout: timeout, Cold: cold,
	}, unitask.Options{Home: home, IO: unitask.IO{Stdin: strings.NewReader(scriptStdin[name]), Stdout: &out,
		Stderr: &errs}})
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	return outcome{normalize(out.String(), path), normalize(errs.String(), path), res.ExitCode}
}

// The few values that differ from run to run.
var normalizations = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\(node:\d+\)`), "(node:PID)"},
	{regexp.MustCompile(`\[\d+:0x[0-9a-f]+(:\d+)?\]`), "[PID]"},
	{regexp.MustCompile(`unitask-diff-\d+`), "unitask-diff-N"},
	{regexp.MustCompile(`0x[0-9a-f]{6,}`), "0xADDR"},
	// V8's native stack trace contains host libraries, a PID and times.
	{regexp.MustCompile(`(?m)^ *\d+: 0xADDR.*\n`), ""},
}

func normalize(s, path string) string {
	for _, n := range normalizations {
		s = n.pattern.ReplaceAllString(s, n.with)
	}
	return s
}

func compare(t *testing.T, e *exception, want, got outcome) {
	t.Helper()
	if e != nil {
		if want == got {
			t.Errorf("is the same as on the host: the exception is no longer needed")
		}
		if e.Exit != nil && *e.Exit != got.exit {
			t.Errorf("exit %d, the exception says %d", got.exit, *e.Exit)
		}
		for _, c := range []struct {
			what    string
			pattern *string
			got     string
		}{{"stdout", e.Stdout, got.stdout}, {"stderr", e.Stderr, got.stderr}} {
			if c.pattern != nil && !regexp.MustCompile(`(?s)\A`+*c.pattern+`\z`).MatchString(c.got) {
				t.Errorf("%s is\n%s\nthe exception says\n%s", c.what, c.got, *c.pattern)
			}
		}
		return
	}
	if got.exit != want.exit {
		t.Errorf("exit %d, on the host %d", got.exit, want.exit)
	}
	if got.stdout != want.stdout {
		t.Errorf("stdout differs:\n%s", firstDifference(got.stdout, want.stdout))
	}
	if got.stderr != want.stderr {
		t.Errorf("stderr differs:\n%s", firstDifference(got.stderr, want.stderr))
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return "line " + itoa(i+1) + " (" + itoa(len(g)) + " and " + itoa(len(w)) + " lines)\n  guest: " + cut(a) +
				"\n  host:  " + cut(b)
		}
	}
	return ""
}

func cut(s string) string {
	if len(s) > 400 {
		return s[:400] + "…"
	}
	return s
}
