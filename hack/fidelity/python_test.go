package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
)

// TestParts checks that the worse verdict counts for a test that runs twice, and that other lines than the runner's do
// not count.
func TestParts(t *testing.T) {
	got := parts(`unitask-test {"id": "b", "verdict": "skip", "reason": "why"}
noise
unitask-test {"id": "a", "verdict": "pass"}
unitask-test {"id": "b", "verdict": "pass"}
unitask-test {"id": "a", "verdict": "fail", "reason": "x"}
unitask-test {
`)
	if want := []part{{"a", "fail", "x"}, {"b", "skip", "why"}}; !slices.Equal(got, want) {
		t.Errorf("parts = %v, want %v", got, want)
	}
}

func newPythonSuite(t *testing.T, n int) *pythonSuite {
	o := options{n: n, jobs: 1, atMost: time.Minute, results: filepath.Join(t.TempDir(), "results"), tests: t.TempDir()}
	s := &pythonSuite{suite: suite{options: o, done: map[string]map[string]result{}}, limit: time.Minute}
	s.candidates = func() ([]string, error) { return []string{"one", "two"}, nil }
	return s
}

// TestHostFault checks that a test that could not be started has no result, and that the rest is not tried.
func TestHostFault(t *testing.T) {
	s := newPythonSuite(t, 2)
	var err error
	if s.rt, err = unitask.Open(unitask.Options{Home: testdir.Private(t)}); err != nil {
		t.Fatal(err)
	}
	defer s.rt.Close()
	if err := s.work(context.Background()); err == nil || err != s.fault {
		t.Errorf("without parts work says %v, want what is missing", err)
	}
	if kept, err := os.ReadFile(s.results); err != nil || len(kept) > 0 {
		t.Errorf("kept %q, %v", kept, err)
	}
}

// TestOnHost runs a file with the host's Python, as another user and in a minimal environment.
func TestOnHost(t *testing.T) {
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	s := newPythonSuite(t, 1)
	if s.rt, err = unitask.Open(unitask.Options{Home: testhome.New(t, base)}); err != nil {
		t.Fatal(err)
	}
	defer s.rt.Close()
	if _, err := s.program(); err != nil {
		t.Skip(err)
	}
	s.tests = os.TempDir() // another user may enter it
	s.args = func(name string) []string { return []string{name} }
	s.runner = `import os, sys
print('unitask-test {"id": "%s", "verdict": "pass", "reason": "%s"}' % (sys.argv[1], 'HOME' in os.environ and ` +
		`'PYTHONPATH' not in os.environ and os.getuid() != 0))
sys.exit(3)`
	t.Setenv("PYTHONPATH", "/nowhere")
	got := s.onHost(context.Background(), "one")
	if got.Verdict != "fail" || !slices.Equal(got.Parts, []part{{"one", "pass", "True"}}) {
		t.Errorf("onHost = %+v", got)
	}
}
