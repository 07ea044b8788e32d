package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/unitask/unitask/internal/console"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// appRules is the policy that clients of MCP give to a page that declares nothing else.
const appRules = "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; " +
	"img-src 'self' data:; media-src 'self' data:; connect-src 'none'"

// client is a client of MCP with apps: it initializes the page, tells a result, and answers a read.
const client = `<!doctype html><title>client</title>
<iframe src="/app" sandbox="allow-scripts allow-same-origin"></iframe>
<script>
window.asked = [];
addEventListener("message", ({ source, data }) => {
	asked.push(data.method);
	const post = (m) => source.postMessage({ jsonrpc: "2.0", ...m }, "*");
	if (data.method === "ui/initialize") post({ id: data.id, result: { protocolVersion: data.params.protocolVersion,
		hostInfo: { name: "client", version: "1" }, hostCapabilities: {}, hostContext: { theme: "dark" } } });
	if (data.method === "ui/notifications/initialized") post({ method: "ui/notifications/tool-result",
		params: { content: [{ type: "text", text: "its text" }], structuredContent: { runId: "20261130-1" } } });
	if (data.method === "resources/read")
		post(%[1]s ? { id: data.id, result: { contents: [{ uri: data.params.uri, text: %[2]s }] } }
			: { id: data.id, error: { code: -32601, message: "no" } });
});
</script>`

// A client shows a run's page beside the result, and the result's own text if it reads nothing for a page.
func TestApp(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: hack/setup --test installs it")
	}
	shell, err := console.AppPage()
	if err != nil {
		t.Fatal(err)
	}
	in := &history.Inspection{Record: &record.Record{ID: "20261130-1"}, Code: "1 < 2",
		Stdout: "<script>parent.evil = 1</script>", Ended: &run.Result{Outcome: "exited"}}
	page, err := console.RunPage(in, []console.Picture{{Name: "a.png", Data: []byte("\x89PNG\r\n\x1a\n0000")}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(page)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /app", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", appRules)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(shell))
	})
	mux.HandleFunc("GET /{reads}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, client, r.PathValue("reads"), text)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	link, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := browse(t, chromium, link)
	for reads, wants := range map[string]string{"true": "exited, exit code 0", "false": "its text"} {
		p.do(chromedp.Navigate(server.URL + "/" + reads))
		p.until(fmt.Sprintf(`document.querySelector("iframe").contentDocument.querySelector("main")?.innerText.includes(%q)`,
			wants))
		p.until(`asked.includes("ui/notifications/size-changed")`)
	}
	p.do(chromedp.Navigate(server.URL + "/true"))
	p.until(`document.querySelector("iframe").contentDocument.querySelector("figure img")?.src.startsWith(
		"data:image/png")`)
	seen := p.eval(`[window.evil, document.querySelector("iframe").contentDocument.querySelectorAll("main script").length,
		getComputedStyle(document.querySelector("iframe").contentDocument.documentElement).colorScheme].join()`)
	if seen != ",0,dark" {
		t.Errorf("script ran, or the theme is not the client's: %s", seen)
	}
	p.elsewhere()
}
