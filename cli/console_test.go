package cli_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

// A browser opens the console with the printed link, once. An interrupt ends it.
func TestAttackConsoleServer(t *testing.T) {
	home := testdir.Private(t)
	for _, listen := range []string{"0.0.0.0:0", "[::]:0", ":0", "localhost:0", "192.0.2.1:0", "127.0.0.1"} {
		_, _, code := ran(t, home, nil, "ui", "--listen", listen)
		attack.Check(t, "console: --listen "+listen, "2", strconv.Itoa(code))
	}
	cmd := exec.CommandContext(t.Context(), "unitask", "ui")
	cmd.Env = append(os.Environ(), "UNITASK_HOME="+home)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	link, err := url.Parse(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar}
	get := func(c *http.Client, to string) (status, page string, at *url.URL) {
		t.Helper()
		res, err := c.Get(to)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strconv.Itoa(res.StatusCode), string(text), res.Request.URL
	}
	status, page, at := get(browser, link.String())
	attack.Check(t, "console: the printed link", "200", status)
	forward := regexp.MustCompile(`href="(/[A-Z0-9]+/)"`).FindStringSubmatch(page)
	if forward == nil {
		t.Fatal(page)
	}
	status, page, at = get(browser, "http://"+at.Host+forward[1])
	attack.Check(t, "console: the page that the link leads to", "200", status)
	if !strings.Contains(page, "No run waits for an answer") {
		t.Error(page)
	}
	for to, want := range map[string]string{"runs": "Outcome", "style.css": "color-scheme", "live": "No session",
		"code": "fresh machine", "policy": "no ceiling", "policy?url=example.com": "Yes, to a run", "follow.js": "fetch("} {
		next, err := at.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		if status, page, _ := get(browser, next.String()); status != "200" || !strings.Contains(page, want) {
			t.Errorf("%s: %s, %s", to, status, page)
		}
	}
	status, _, _ = get(browser, link.String())
	attack.Check(t, "console: the printed link, again", "403", status)
	status, _, _ = get(http.DefaultClient, at.String())
	attack.Check(t, "console: the page's address without the cookie", "401", status)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
}
