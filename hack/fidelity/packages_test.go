package main

import "testing"

// Each pack has a program, and each program a pack.
func TestPackPrograms(t *testing.T) {
	for _, p := range packs {
		if p, err := p.read(); err != nil || p.program == "" {
			t.Errorf("%s: %v", p.name, err)
		}
	}
	files, err := packPrograms.ReadDir("packages")
	if err != nil || len(files) != len(packs) {
		t.Errorf("got %d programs for %d packs: %v", len(files), len(packs), err)
	}
}
