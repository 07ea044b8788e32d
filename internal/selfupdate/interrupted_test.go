package selfupdate

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// An update killed at any step does not hinder the next command, and loses no program.
func TestAttackInterruptedUpdate(t *testing.T) {
	public, private := pair(t)
	next := release(t, private, "v1.3.0", packed(t, tar.Header{Name: inArchive}, program("v1.3.0")))
	for name, row := range map[string]struct {
		files    map[string]string // by the end of the name
		rollback bool
		want     string
	}{
		"a new program is there": {map[string]string{"": "v1.2.3", "/.unitask-update-1": "v1.3.0"}, false,
			"unitask=v1.3.0 unitask.previous=v1.2.3"},
		"the old one has two names": {map[string]string{"": "v1.2.3", ".replaced": "link", ".previous": "v1.1.0"}, true,
			"unitask=v1.1.0 unitask.previous=v1.2.3"},
		"the new one is in place": {map[string]string{"": "v1.3.0", ".replaced": "v1.2.3"}, true,
			"unitask=v1.2.3 unitask.previous=v1.3.0"},
		"another update came first": {map[string]string{"": "v1.4.0", ".previous": "v1.2.3"}, false,
			"unitask=v1.4.0 unitask.previous=v1.2.3"},
		"the same update came first": {map[string]string{"": "v1.3.0", ".previous": "v1.2.3"}, false,
			"unitask=v1.3.0 unitask.previous=v1.2.3"},
		"previous is a folder": {map[string]string{"": "v1.2.3", ".previous": "folder"}, false,
			"unitask=v1.2.3 unitask.previous="},
	} {
		at := filepath.Join(t.TempDir(), "unitask")
		put(t, at, []byte(program(row.files[""])))
		for end, text := range row.files {
			file := at + end
			if end == "/.unitask-update-1" {
				file = filepath.Dir(at) + end
			}
			switch text {
			case "link":
				if err := os.Link(at, file); err != nil {
					t.Fatal(err)
				}
			case "folder":
				if err := os.Mkdir(file, 0o755); err != nil {
					t.Fatal(err)
				}
			default:
				put(t, file, []byte(program(text)))
			}
		}
		r, err := Publisher{public, next}.Newest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if row.rollback {
			_, err = Rollback(t.Context(), at)
		} else {
			err = r.Install(t.Context(), at, func(int64) {})
		}
		t.Log(name, err)
		entries, err := os.ReadDir(filepath.Dir(at))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			said, _ := says(t.Context(), filepath.Join(filepath.Dir(at), e.Name()))
			got = append(got, e.Name()+"="+said)
		}
		attack.Check(t, "an interrupted update: "+name, row.want, strings.Join(got, " "))
	}
}

// A program that leaves a process with its output does not hold an update.
func TestSaysEnds(t *testing.T) {
	if _, err := exec.LookPath("sleep"); err != nil {
		t.Skip("wants sleep")
	}
	at := filepath.Join(t.TempDir(), "unitask")
	put(t, at, []byte("#!/bin/sh\nsleep 15 &\necho unitask v1.2.3\n"))
	start := time.Now()
	if _, err := says(t.Context(), at); err == nil || time.Since(start) > 10*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
