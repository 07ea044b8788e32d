package e2b

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// elevated makes folders and files where only root may, as E2B's daemon does. They are the user's.
func (b *box) elevated(t *testing.T) {
	if _, err := call[pathRequest, entryMessage](b, "/filesystem.Filesystem/MakeDir",
		&pathRequest{"/workspace/a b"}); err != nil {
		t.Error(err)
	}
	for i, size := range []int{0, 10, maxReplayed / 2, maxReplayed + 1<<20} {
		for _, slow := range []bool{false, true} { // a slow one comes after the machine has refused it
			name := fmt.Sprintf("/srv/%d-%t/file", i, slow)
			from := io.Reader(strings.NewReader(strings.Repeat("x", size)))
			if slow {
				in, out := io.Pipe()
				late := io.MultiReader(strings.NewReader("first "), from)
				time.AfterFunc(300*time.Millisecond, func() {
					_, err := io.Copy(out, late)
					out.CloseWithError(err)
				})
				from, size = in, size+len("first ")
			}
			status := b.post(t, "/files?path="+name, from)
			r, err := b.run("stat -c %U /srv/* " + name + " | sort -u; wc -c < " + name + "; head -c 6 " + name)
			want := fmt.Sprintf("user\n%d\n", size)
			// Of a large one more may have come than is kept.
			if whole := strings.HasPrefix(r.stdout, want) && strings.HasSuffix(r.stdout, "first ") == slow; err != nil ||
				(status != 200 || !whole) && !(size > maxReplayed && status == 403) {
				t.Errorf("%s: %d %q %v", name, status, r.stdout, err)
			}
		}
	}
	if r, err := b.run("stat -c '%U %n' /workspace '/workspace/a b'"); r.stdout !=
		"user /workspace\nuser /workspace/a b\n" {
		t.Errorf("%q %q %v", r.stdout, r.stderr, err)
	}
	status, text := b.send("POST", "/files?path=/proc/1/environ", []byte("x"), b.headers(daemonPort,
		"Content-Type", "application/octet-stream"))
	if status != 403 && status != 404 {
		t.Errorf("a file of /proc: %d %s", status, text)
	}
}

// post uploads a file, and returns the answer's status.
func (b *box) post(t *testing.T, path string, from io.Reader) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+path, from)
	if err != nil {
		t.Fatal(err)
	}
	all := b.headers(daemonPort, "Content-Type", "application/octet-stream")
	for i := 0; i < len(all); i += 2 {
		req.Header.Set(all[i], all[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}
