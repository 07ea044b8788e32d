package program

import "testing"

// Changes in the root directory say nothing about the code: /out and /tmp are there.
func TestLooks(t *testing.T) {
	for dir, want := range map[string]bool{"/work": true, "/srv/app": true, "/": false, "": false} {
		if p := (&Program{Dir: dir}); p.looks() != want {
			t.Errorf("%q: %v, want %v", dir, p.looks(), want)
		}
	}
}
