package fetch

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A request ends if its server is silent before or in its answer, and not because its caller reads slowly.
func TestPatient(t *testing.T) {
	hold := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/half":
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			<-hold
		case "/nothing":
			<-hold
		default:
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		}
	}))
	defer server.Close()
	defer close(hold)
	client := http.Client{Transport: patient{http.DefaultTransport, 200 * time.Millisecond}}
	get := func(path string) (n int64, err error) {
		answer, err := client.Get(server.URL + path)
		if err != nil {
			return 0, err
		}
		defer answer.Body.Close()
		n, err = io.CopyN(io.Discard, answer.Body, 4)
		if err == nil {
			if answer.Body.(*watched).timer.Stop() {
				t.Error("the caller's time between two reads counts")
			}
			var more int64
			more, err = io.Copy(io.Discard, answer.Body)
			n += more
		}
		return n, err
	}
	for path, want := range map[string]int64{"/nothing": 0, "/half": 4} {
		if n, err := get(path); n != want || err == nil || !strings.Contains(err.Error(), "sent nothing for 200ms") {
			t.Errorf("%s: %d bytes, %v", path, n, err)
		}
	}
	if n, err := get("/all"); n != 1<<20 || err != nil {
		t.Errorf("all of an answer: %d bytes, %v", n, err)
	}
}
