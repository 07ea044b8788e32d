package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

const (
	// shotsIn names the folder for pictures of the pages (make screenshots); without it there are none.
	shotsIn = "UNITASK_TEST_SCREENSHOTS"
	// shotBytes bounds one of the at most five pictures: all have 400 KB.
	shotBytes = 80 << 10
	// paintTime is how long a run's page may take to its first paint, in ms.
	paintTime = 100
)

// shot takes a picture of the page for the documentation.
func (p *page) shot(name string) {
	p.Helper()
	dir := os.Getenv(shotsIn)
	if dir == "" {
		return
	}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"}}}); err != nil {
		p.Fatal(err)
	}
	p.do(chromedp.EmulateViewport(800, 620))
	p.eval(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))`)
	text, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.Fatal(err)
	}
	if len(text) > shotBytes {
		p.Errorf("the picture %s has %d bytes, more than %d", name, len(text), shotBytes)
	}
	if err := os.WriteFile(filepath.Join(dir, "ui-"+name+".png"), text, 0o644); err != nil {
		p.Fatal(err)
	}
}

// painted checks how long a page takes to its first paint: the best of some, as the machine may be busy.
func (p *page) painted(to string) {
	p.Helper()
	best := 1e9
	for range 8 {
		p.goTo(to)
		p.until(`performance.getEntriesByName("first-contentful-paint").length === 1`)
		ms, err := strconv.ParseFloat(p.eval(`performance.getEntriesByName("first-contentful-paint")[0].startTime`), 64)
		if err != nil {
			p.Fatal(err)
		}
		best = min(best, ms)
	}
	if p.Logf("first paint of %.12s: %.0f ms", to, best); best > paintTime {
		p.Errorf("the first paint of %.12s takes %.0f ms, more than %d", to, best, paintTime)
	}
}

// Another page of this host, to which the browser would send the console's cookie, can't show it in a frame.
func TestAttackConsoleFramed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser; not in -short")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: hack/setup --test installs it")
	}
	p := open(t, chromium, serve(t, testdir.Private(t)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><title>other</title><iframe src="%s"></iframe>`, p.base)
	}))
	defer server.Close()
	p.do(chromedp.Navigate(server.URL))
	tree, err := chromedp.Call(p.ctx, cdppage.GetFrameTree, struct{}{})
	if err != nil {
		p.Fatal(err)
	}
	shown := ""
	for _, child := range tree.FrameTree.ChildFrames {
		shown += child.Frame.URL
	}
	attack.Check(t, "console: inside of another page's frame", "chrome-error://chromewebdata/", shown)
}
