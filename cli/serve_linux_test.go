package cli_test

import (
	"bufio"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/cli"
	"github.com/unitask/unitask/internal/testdir"
)

// A server with --until-eof reads nothing of standard input, and ends with it.
func TestServeUntilEOF(t *testing.T) {
	t.Setenv("UNITASK_HOME", testdir.Private(t))
	t.Setenv("UNITASK_OFFLINE", "1")
	t.Chdir(testdir.Private(t))
	in, feed := io.Pipe()
	told, errs := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- cli.Main([]string{"serve", "--listen", "127.0.0.1:0", "--until-eof", "--drain", "1s"},
			cli.Streams{Stdin: in, Stdout: io.Discard, Stderr: errs})
		errs.Close()
	}()
	lines := bufio.NewScanner(told)
	address := regexp.MustCompile(`serving (http://[0-9.:]+[0-9])`)
	var at []string
	for at == nil && lines.Scan() {
		at = address.FindStringSubmatch(lines.Text())
	}
	if at == nil {
		t.Fatal("it does not say its address")
	}
	go func() { _, _ = io.Copy(io.Discard, told) }()
	if _, err := io.WriteString(feed, strings.Repeat("quit\n", 1<<16)); err != nil {
		t.Fatal(err)
	}
	res, err := http.Get(at[1] + "/v1/about")
	if err != nil {
		t.Fatalf("it ended before its input: %v", err)
	}
	res.Body.Close()
	feed.Close()
	select {
	case got := <-code:
		if got != 0 {
			t.Errorf("exit code %d", got)
		}
	case <-time.After(time.Minute):
		t.Error("it goes on without an input")
	}
}
