// Command escapes runs the payloads of orkait/rustbox-escape-tests in machines, and checks what changed on the host.
// They are in a folder of that repository, which is not part of this one.
//
//	go run ./hack/escapes -tests DIR [-lang python,c] [-test NAME] [-home DIR]
//
// That project expects each attempt to fail, which is necessary if all code shares one kernel. In its own machine the
// code may be root, fork, mount and read that machine's files. So a payload's own report is counted, but does not
// decide. An attempt got through in any of these cases. It ends neither by itself nor by its limits. The host has
// another process, file, user or mount afterwards. The machine took more memory than granted. The output contains
// something that only the host has. A connection was allowed. The host compiles C, C++, Go and Rust if it can, and they
// run as programs of the shell image.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	memoryMB = 256                    // of each machine
	memoryUp = 512                    // MiB for QEMU and unitask besides
	limit    = 8                      // seconds for the code
	patience = 2 * time.Minute        // for the whole run on a busy host
	sampling = 100 * time.Millisecond // of the memory
)

// test is one of manifest.json's.
type test struct {
	Name, File, Language, Description string
}

// compilers make a static program of a payload; OUT and IN are replaced by paths.
var compilers = map[string][]string{
	"c":    {"gcc", "-static", "-w", "-pthread", "-o", "OUT", "IN"},
	"cpp":  {"g++", "-static", "-w", "-pthread", "-o", "OUT", "IN"},
	"go":   {"go", "build", "-o", "OUT", "IN"},
	"rust": {"rustc", "-C", "target-feature=+crt-static", "-A", "warnings", "-o", "OUT", "IN"},
}

// interpreted are the languages that a machine interprets, with unitask's names.
var interpreted = map[string]string{"python": "python", "javascript": "js", "typescript": "ts"}

// verdict is the result of one attempt.
type verdict struct {
	test    test
	outcome string   // of the run, or why it did not run
	claims  bool     // the payload claims success
	through []string // which of the host's resources it reached
	skipped bool
}

func main() {
	dir := flag.String("tests", "", "folder of the repository")
	languages := flag.String("lang", "", "only these languages, comma-separated")
	only := flag.String("test", "", "only the test of this name")
	home := flag.String("home", os.Getenv("UNITASK_HOME"), "home to run in")
	program := flag.String("unitask", "bin/unitask", "the program")
	flag.Parse()
	list, err := attempts(*dir, *languages, *only, *home, *program)
	if len(list) > 0 {
		table(list)
	}
	if err == nil && slices.ContainsFunc(list, func(v verdict) bool { return len(v.through) > 0 }) {
		err = errors.New("something got through")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "escapes:", err)
		os.Exit(1)
	}
}

// attempts runs them one after the other.
func attempts(dir, languages, only, home, program string) (list []verdict, err error) {
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, fmt.Errorf("-tests %q is no folder of rustbox-escape-tests: %w", dir, err)
	}
	var manifest struct{ Tests []test }
	if err := json.Unmarshal(data, &manifest); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	if program, err = filepath.Abs(program); err != nil {
		return nil, err
	}
	// Orphans become our children, so we find them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	built, err := os.MkdirTemp("", "escapes-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(built)
	// A template is made after a run, so its processes need some time to end.
	h := &host{program: program, home: home, tmp: filepath.Join(built, "tmp"), settling: 40 * time.Second,
		mostMB: memoryMB + memoryUp}
	if err := h.open(); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"--code", "1"}, {"--lang", "python", "--code", "1"},
		{"--lang", "shell", "--code", ":"}} {
		// Images and templates are made after a first run, and need more memory.
		if err := h.attempt(&verdict{}, args); err != nil {
			return nil, err
		}
	}
	for _, t := range manifest.Tests {
		if only != "" && t.Name != only || languages != "" && !slices.Contains(strings.Split(languages, ","), t.Language) {
			continue
		}
		v := verdict{test: t}
		// The manifest lists some files under a folder's old name.
		args, why := arguments(t, filepath.Join(dir, "payloads",
			filepath.FromSlash(strings.TrimPrefix(t.File, "adversarial/"))), built)
		if why != "" {
			v.skipped, v.outcome = true, why
		} else if err := h.attempt(&v, args); err != nil {
			return list, fmt.Errorf("%s: %w", t.Name, err)
		}
		list = append(list, v)
		fmt.Printf("%-34s %-40s %s\n", t.Name, v.outcome, strings.Join(v.through, "; "))
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no test of %q in language %q", only, languages)
	}
	return list, nil
}

// arguments returns unitask's arguments for one payload, or why it can't run here.
func arguments(t test, payload, built string) (args []string, why string) {
	if language, ok := interpreted[t.Language]; ok {
		return []string{"--lang", language, payload}, ""
	}
	line, ok := compilers[t.Language]
	if !ok {
		return nil, "not run: no image has " + t.Language
	}
	if _, err := exec.LookPath(line[0]); err != nil {
		return nil, "not run: no " + line[0] + " here"
	}
	out := filepath.Join(built, t.Name)
	line = slices.Clone(line)
	line[slices.Index(line, "OUT")], line[slices.Index(line, "IN")] = out, payload
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GO111MODULE=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		return nil, "not run: it does not compile: " + first
	}
	return []string{"--lang", "shell", "--file", out, "--code",
		"cp " + out + " /tmp/p && chmod 755 /tmp/p && exec /tmp/p"}, ""
}

// table prints the verdicts by language.
func table(list []verdict) {
	fmt.Println(
		"\n| language | payloads | run | say that they succeeded, " +
			"inside | through to the host |\n| --- | --- | --- | --- | --- |")
	row := func(name string, in func(verdict) bool) {
		var all, run, claims, through int
		for _, v := range list {
			if !in(v) {
				continue
			}
			all++
			if !v.skipped {
				run++
			}
			if v.claims {
				claims++
			}
			if len(v.through) > 0 {
				through++
			}
		}
		fmt.Printf("| %s | %d | %d | %d | %d |\n", name, all, run, claims, through)
	}
	var languages []string
	for _, v := range list {
		if !slices.Contains(languages, v.test.Language) {
			languages = append(languages, v.test.Language)
		}
	}
	for _, l := range languages {
		row(l, func(v verdict) bool { return v.test.Language == l })
	}
	row("all", func(verdict) bool { return true })
}
