package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Programs compiled here must run with the vendored libc, whatever the host's is.
func TestRunsOn(t *testing.T) {
	cc := compiler(HostArch())
	if _, err := exec.LookPath(cc); err != nil {
		t.Skipf("needs %s", cc)
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, olderLibcFile), []byte(olderLibc), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "x.c"), []byte(`#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
long f(const char *s, void *(*g)(void *)) { long n; pthread_t t; pthread_create(&t, NULL, g, NULL); return `+
		`sscanf(s, "%ld", &n) + strtol(s, NULL, 10); }
`), 0o644))
	library := filepath.Join(dir, "x.so")
	must(t, compile(t.Context(), dir, cc, "-include", olderLibcFile, "-Wall", "-Werror", "-shared", "-fPIC", "-o", library,
		"x.c"))
	libc := Part{Version: "2.36-9+deb12u14", dir: filepath.Join(dir, "libc")}
	if err := runsOn(library, libc); err == nil || !strings.Contains(err.Error(), "libc.so.6") {
		t.Errorf("without the library that it names: %v", err)
	}
	must(t, os.MkdirAll(libc.path("root/lib/triplet"), 0o755))
	must(t, os.WriteFile(libc.path("root/lib/triplet/libc.so.6"), nil, 0o644))
	if err := runsOn(library, libc); err != nil {
		t.Errorf("on Debian 12's: %v", err)
	}
	if libc.Version = "2.2"; runsOn(library, libc) == nil {
		t.Error("it runs on a libc from before its symbols")
	}
	if out, err := exec.Command("nm", "-D", library).Output(); err == nil && strings.Contains(string(out), "isoc23") {
		t.Errorf("it asks for parsers of C23:\n%s", out)
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{{"2.38", "2.36-9+deb12u14", true}, {"2.36", "2.36-9", false}, {"2.4", "2.36-9", false}, {"2.2.5", "2.36", false},
		{"3.0", "2.36", true}, {"2.34", "", true}} {
		if newer(c.a, c.b) != c.want {
			t.Errorf("newer(%q, %q) is not %v", c.a, c.b, c.want)
		}
	}
}
