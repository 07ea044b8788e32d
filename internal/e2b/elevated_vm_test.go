package e2b

import (
	"strings"
	"testing"
)

// elevated makes folders and files where only root may, as E2B's daemon does. They are the user's.
func (b *box) elevated(t *testing.T) {
	if _, err := call[pathRequest, entryMessage](b, "/filesystem.Filesystem/MakeDir",
		&pathRequest{"/workspace/a b"}); err != nil {
		t.Error(err)
	}
	for _, size := range []int{10, maxReplayed + 1<<20} {
		status, text := b.send("POST", "/files?path=/srv/deep/file", []byte(strings.Repeat("x", size)),
			b.headers(daemonPort, "Content-Type", "application/octet-stream"))
		if status != 200 {
			t.Errorf("%d bytes: %d %s", size, status, text)
		}
	}
	r, err := b.run("stat -c '%U %n' /workspace '/workspace/a b' /srv/deep /srv/deep/file; wc -c < /srv/deep/file")
	if want := "user /workspace\nuser /workspace/a b\nuser /srv/deep\nuser /srv/deep/file\n2097152\n"; r.stdout != want {
		t.Errorf("%q %q %v", r.stdout, r.stderr, err)
	}
	status, text := b.send("POST", "/files?path=/proc/1/environ", []byte("x"), b.headers(daemonPort,
		"Content-Type", "application/octet-stream"))
	if status < 400 {
		t.Errorf("a file of /proc: %d %s", status, text)
	}
}
