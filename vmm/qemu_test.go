package vmm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// script puts an executable with that name on an otherwise empty PATH.
func script(t *testing.T, name, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	return filepath.Join(dir, name)
}

func TestFindQEMU(t *testing.T) {
	for name, c := range map[string]struct {
		text    string // of the qemu-system-x86_64 on PATH; "" for none
		version string
		is      error
		says    string
		sandbox bool
	}{
		"missing":    {"", "", ErrNoQEMU, "apt-get install", false},
		"too old":    {"echo QEMU emulator version 6.2.0", "", ErrOldQEMU, "6.2.0, 7.2 is needed", false},
		"a bit old":  {"echo QEMU emulator version 7.1.9", "", ErrOldQEMU, "7.1.9", false},
		"oldest":     {"echo QEMU emulator version 7.2", "7.2", nil, "", true},
		"Debian's":   {"echo 'QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)'", "7.2.22", nil, "", true},
		"newer":      {"echo QEMU emulator version 10.0.2", "10.0.2", nil, "", true},
		"not QEMU":   {"echo hello", "", nil, `it says "hello\n"`, false},
		"broken":     {"echo oh no >&2; exit 3", "", nil, "oh no", false},
		"says a lot": {"head -c 1000000 /dev/zero", "", nil, "it says", false},
		"no filter": {
			text: `[ "$1" = -sandbox ] && { echo "-sandbox support is not enabled in this QEMU binary" >&2; exit 1; }; ` +
				`echo QEMU emulator version 9.1.0`,
			version: "9.1.0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.text == "" {
				t.Setenv("PATH", t.TempDir())
			} else {
				script(t, "qemu-system-x86_64", "PATH=/bin:/usr/bin\n"+c.text)
			}
			q, err := FindQEMU(t.Context(), AMD64, nil)
			if q.Version != c.version || q.Sandbox != c.sandbox || (err == nil) != (c.version != "") {
				t.Errorf("%+v, %v", q, err)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
			if err != nil && (!strings.Contains(err.Error(), c.says) || len(err.Error()) > 500) {
				t.Errorf("%v does not say %q", err, c.says)
			}
		})
	}
}

// memory is a cache.
type memory map[string]string

func (m memory) Get(key string) (string, bool) { v, ok := m[key]; return v, ok }
func (m memory) Put(key, value string)         { m[key] = value }

// If a host is too busy to answer in time, or kills the process that would, QEMU is not remembered as lacking the
// feature.
func TestNoAnswer(t *testing.T) {
	before := versionTimeout
	defer func() { versionTimeout = before }()
	for does, says := range map[string]string{"sleep 5": "within 300ms",
		"{ echo QEMU emulator version 9.1.0; kill -9 $$; }": "signal: killed"} {
		if versionTimeout = before; does == "sleep 5" {
			versionTimeout = 300 * time.Millisecond
		}
		for _, option := range []string{"-sandbox", "-M", "-L", "--version"} {
			script(t, "qemu-system-x86_64", "PATH=/bin:/usr/bin\n[ \"$1\" = "+option+" ] && "+does+
				"\n[ \"$1\" != -sandbox ] || [ "+option+" != --version ] || exit 1\necho QEMU emulator version 9.1.0")
			seen := memory{}
			if q, err := FindQEMU(t.Context(), AMD64, seen); !errors.Is(err, errNoAnswer) ||
				!strings.Contains(err.Error(), option) || !strings.Contains(err.Error(), says) || len(seen) != 0 {
				t.Errorf("%s at %s: %+v, %v; remembered: %v", does, option, q, err, seen)
			}
		}
	}
	versionTimeout = before
	if err := os.WriteFile(script(t, "qemu-system-x86_64", ""), []byte("not a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if q, err := FindQEMU(t.Context(), AMD64, memory{}); !errors.Is(err, errNoAnswer) || !errors.Is(err, syscall.ENOEXEC) {
		t.Errorf("one that can't be started: %+v, %v", q, err)
	}
	script(t, "qemu-system-x86_64", "echo QEMU emulator version 9.1.0")
	seen := memory{}
	if q, err := FindQEMU(t.Context(), AMD64, seen); err != nil || !q.Sandbox || len(seen) != 1 {
		t.Errorf("%+v, %v; remembered: %v", q, err, seen)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := FindQEMU(ctx, AMD64, memory{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Where QEMU is searched for, and the error if it is missing.
func TestLocate(t *testing.T) {
	own, other := AMD64, ARM64
	if runtime.GOARCH == "arm64" {
		own, other = ARM64, AMD64
	}
	onPath := script(t, programs[own], "")
	dir := t.TempDir()
	for _, name := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	odd := filepath.Join(dir, "qemu-kvm")
	if err := os.WriteFile(odd, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		variable string
		arch     Arch
		want     string
		says     string
	}{
		"on PATH":                         {"", own, onPath, ""},
		"in a folder that is named":       {dir, own, filepath.Join(dir, programs[own]), ""},
		"the other one too":               {dir, other, filepath.Join(dir, programs[other]), ""},
		"a program that is named":         {odd, own, odd, ""},
		"it is not the other one":         {odd, other, "", "no " + programs[other]},
		"a folder without it":             {t.TempDir(), own, "", "holds no " + programs[own]},
		"a folder that is not there":      {"/nowhere", own, "", Variable + ": stat /nowhere"},
		"PATH is not looked at otherwise": {filepath.Dir(dir) + "/missing", own, "", Variable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(Variable, c.variable)
			got, err := locate(c.arch)
			if got != c.want || (err == nil) != (c.says == "") ||
				(err != nil && (!strings.Contains(err.Error(), c.says) || !errors.Is(err, ErrNoQEMU))) {
				t.Errorf("%q %v", got, err)
			}
		})
	}
	for _, i := range installers {
		script(t, i.tool, "")
		if hint := installHint(ARM64); hint != "`"+i.command+" "+i.packages[ARM64]+"`" || i.packages[AMD64] == "" {
			t.Errorf("%s: %s", i.tool, hint)
		}
	}
}

// Which builds lack microvm.
func TestLacksMicrovm(t *testing.T) {
	const head = "Supported machines are:\n"
	for list, want := range map[string]bool{
		head + "microvm              microvm (i386)\npc-q35-7.2           Standard PC\n" +
			"none                 empty machine\n": false,
		head + "pc                   RHEL 7.6.0 PC\n" +
			"q35                  RHEL-9.4.0 PC (Q35 + ICH9, 2009)\n": true,
		head + "pc-q35-rhel9.4.0     RHEL-9.4.0 PC (Q35 + ICH9, 2009)\n" +
			"none                 empty machine\n": true,
		// of another architecture
		head + "virt                 QEMU 10.0 ARM Virtual Machine\n": false,
		"QEMU emulator version 8.0.1\n":                               false,
		"":                                                            false,
	} {
		if got := lacksMicrovm(list); got != want {
			t.Errorf("%q: %v", list, got)
		}
	}
}

// kept is a cache.
type kept map[string]string

func (k kept) Get(key string) (string, bool) { v, ok := k[key]; return v, ok }
func (k kept) Put(key, value string)         { k[key] = value }

// A version is asked for once, and again when the binary has changed.
func TestFindQEMURemembers(t *testing.T) {
	path := script(t, "qemu-system-x86_64", "echo x >> \"$0.asked\"\necho QEMU emulator version 8.0.1")
	seen := kept{}
	for range 3 {
		if _, err := FindQEMU(t.Context(), AMD64, seen); err != nil {
			t.Fatal(err)
		}
	}
	if asked, _ := os.ReadFile(path + ".asked"); string(asked) != "x\nx\nx\n" { // once for each of three answers
		t.Errorf("asked %q", asked)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho QEMU emulator version 9.0.1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if q, err := FindQEMU(t.Context(), AMD64, seen); err != nil || q.Version != "9.0.1" {
		t.Errorf("%+v %v", q, err)
	}
}
