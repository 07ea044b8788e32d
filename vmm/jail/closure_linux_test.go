package jail

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The closure contains the libraries that ld.so itself reports.
func TestClosureIsWhatIsLoaded(t *testing.T) {
	for _, name := range []string{"qemu-system-x86_64", "ls", "bash"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Logf("no %s here", name)
			continue
		}
		p, err := Examine(path, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(path)
		cmd.Env = append(os.Environ(), "LD_TRACE_LOADED_OBJECTS=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		loaded := regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1)
		if len(loaded) < 2 {
			t.Fatalf("%s loads %q", name, out)
		}
		for _, l := range loaded {
			if !slices.Contains(p.Files, l[1]) {
				t.Errorf("%s loads %s, which is not in its closure", name, l[1])
			}
		}
		t.Logf("%s: %d files, %d loaded", name, len(p.Files), len(loaded))
	}
}

func TestClosureOfNoProgram(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "", "script": "#!/bin/sh\nexit 0\n", "magic": elf.ELFMAG,
		"cut": elf.ELFMAG + "\x02\x01\x01" + strings.Repeat("\x00", 20)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		if p, err := Examine(path, nil, nil); err == nil {
			t.Errorf("%s: %v", name, p)
		} else if name == "script" && !errors.Is(err, ErrNoProgram) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseCache(t *testing.T) {
	for _, short := range []string{"", "glibc-ld.so.cache1.1", "glibc-ld.so.cache1.1" + strings.Repeat("\xff", 28),
		"glibc-ld.so.cache1.1" + strings.Repeat("\xff", 200)} {
		if got := parseCache([]byte(short)); len(got) != 0 {
			t.Errorf("%q: %v", short, got)
		}
	}
	data, err := os.ReadFile(loaderCache)
	if err != nil {
		t.Skipf("no cache: %v", err)
	}
	cache := parseCache(data)
	if paths := cache["libc.so.6"]; len(paths) == 0 || !filepath.IsAbs(paths[0]) {
		t.Errorf("libc.so.6: %v", paths)
	}
}

func FuzzParseCache(f *testing.F) {
	if data, err := os.ReadFile(loaderCache); err == nil {
		f.Add(data[:min(len(data), 4096)])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, paths := range parseCache(data) {
			for _, p := range paths {
				if name == "" || !filepath.IsAbs(p) {
					t.Errorf("%q: %q", name, p)
				}
			}
		}
	})
}
