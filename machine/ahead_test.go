package machine

import (
	"io"
	"testing"
)

// The template that a run's folders led to is loaded ahead of the next that names them, and is
// taken by no other.
func TestAhead(t *testing.T) {
	if !CanClone {
		t.Skip("snapshots need Linux's memfd")
	}
	s := Open(Options{Home: t.TempDir()})
	defer s.Close()
	const key, name = "a" + foldersMark + "b", "/project"
	save(t, s.templates, key)
	first := s.Ahead(name)
	if first.take(key) != nil {
		t.Error("a template came from nowhere")
	}
	first.led(key)
	first.Close()
	for _, wrong := range []struct{ name, key string }{{name, "another"}, {"/another", key}} {
		a := s.Ahead(wrong.name)
		if a.take(wrong.key) != nil {
			t.Errorf("%s led to the template of %s", wrong.name, wrong.key)
		}
		a.Close()
	}
	a := s.Ahead(name)
	defer a.Close()
	got := a.take(key)
	if got == nil || got.Ready() != nil {
		t.Fatal("the template was not loaded")
	}
	defer got.Close()
	text := make([]byte, 5)
	if _, err := got.Memory.ReadAt(text, 0); err != nil && err != io.EOF || string(text) != "first" {
		t.Errorf("%q %v", text, err)
	}
	if a.take(key) != nil {
		t.Error("it was taken twice")
	}
	s.templates.Drop(key)
	gone := s.Ahead(name)
	defer gone.Close()
	if gone.take(key) != nil {
		t.Error("a template that was dropped was loaded")
	}
	var none *Ahead // of a run whose process keeps templates
	none.led(key)
	none.Close()
	if none.take(key) != nil {
		t.Error("nothing led to a template")
	}
}
