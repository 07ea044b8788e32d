package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/selfupdate"
)

// The other files of a release are complete, and the same on a second build.
func TestSameBytes(t *testing.T) {
	t.Chdir("../..") // as make dist runs it
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var archives, boms [][]byte
	for range 2 {
		dir := t.TempDir()
		program := filepath.Join(dir, "x", "unitask")
		if err := write(program, []byte("program")); err != nil {
			t.Fatal(err)
		}
		files, err := extras("1.2.3", filepath.Dir(program))
		if err != nil {
			t.Fatal(err)
		}
		names := strings.Join(files, " ")
		for _, want := range []string{"completions/_unitask", "completions/unitask.bash", "completions/unitask.fish",
			"man/unitask.1", "man/unitask-run.1"} {
			if !strings.Contains(names, want) {
				t.Errorf("no %s in %s", want, names)
			}
		}
		name := filepath.Join(dir, "a.tar.gz")
		if err := archive(name, append([]string{program}, files...)...); err != nil {
			t.Fatal(err)
		}
		if err := sums(dir); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		list, err := os.ReadFile(filepath.Join(dir, selfupdate.SumsFile))
		if sum, digestErr := digest(name); err != nil || digestErr != nil || string(list) != sum+"  a.tar.gz\n" {
			t.Errorf("%s: %q", selfupdate.SumsFile, list)
		}
		parts, err := bom(self, "1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		bill, err := json.Marshal(parts)
		if err != nil {
			t.Fatal(err)
		}
		archives, boms = append(archives, text), append(boms, bill)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same files differ")
	}
	if !bytes.Equal(boms[0], boms[1]) || !bytes.Contains(boms[0], []byte("pkg:golang/github.com/spf13/cobra@v")) {
		t.Errorf("%s\n%s", boms[0], boms[1])
	}
}
