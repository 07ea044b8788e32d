package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testprogram"
	"github.com/unitask/unitask/internal/testregistry"
)

// axeVersion is the release of axe-core, which looks for what a screen reader can't use.
const axeVersion = "4.14.1"

// wait bounds what a page is waited for: machines are slow without KVM.
const wait = 90 * time.Second

// page is a browser's page on a console.
type page struct {
	*testing.T
	ctx  context.Context
	base string // of the console's pages
	axe  string // its script, "" without npm
	mu   sync.Mutex
	out  []string // requests elsewhere
}

// serve starts `unitask ui` in a folder, and returns its link.
func serve(t *testing.T, dir string) *url.URL {
	t.Helper()
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	program, err := testprogram.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home := testhome.New(t, base)
	cmd := exec.Command(program, "ui", "--no-open")
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), "UNITASK_HOME="+home), dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end := exec.Command(program, "session", "rm", "--all")
		end.Env = cmd.Env
		if said, err := end.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, said)
		}
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	link, err := url.Parse(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// browse starts the browser, and notes requests to other hosts than a link's.
func browse(t *testing.T, program string, link *url.URL) *page {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &page{T: t, ctx: ctx, axe: axe(t)}
	p.do(chromedp.Navigate("about:blank"))
	if err := chromedp.Listen(ctx, func(ev any) {
		var sent string
		switch e := ev.(type) {
		case *network.EventRequestWillBeSent:
			sent = e.Request.URL
		case network.EventRequestWillBeSent:
			sent = e.Request.URL
		}
		if u, err := url.Parse(sent); err != nil || sent != "" && u.Scheme != "data" && u.Scheme != "about" &&
			u.Host != link.Host {
			p.mu.Lock()
			p.out = append(p.out, sent)
			p.mu.Unlock()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// open starts the browser on a console's link, as from another site's page.
func open(t *testing.T, program string, link *url.URL) *page {
	t.Helper()
	p := browse(t, program, link)
	p.do(chromedp.Navigate("data:text/html,<a href='" + link.String() + "'>x</a>"))
	p.eval(`document.querySelector("a").click()`)
	p.until(`document.body && document.body.textContent.includes("No run waits")`)
	p.base = p.eval(`location.href`)
	return p
}

func (p *page) do(step chromedp.Action[chromedp.Void]) {
	p.Helper()
	if err := chromedp.Do(p.ctx, step); err != nil {
		p.Fatal(err)
	}
}

// eval returns an expression's value as text.
func (p *page) eval(expression string) string {
	p.Helper()
	said, err := chromedp.Run(p.ctx, chromedp.Evaluate[string](`(async () => String(await (`+expression+`)))()`,
		chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatal(expression, ": ", err)
	}
	return said
}

// until waits for a condition, also while pages load.
func (p *page) until(condition string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, wait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`Boolean(`+condition+`)`))
		if err == nil && yes {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			text, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
			p.Fatalf("%s: not so after %s, %v; the page:\n%s", condition, wait, err, text)
		}
	}
}

func (p *page) goTo(to string) { p.Helper(); p.do(chromedp.Navigate(p.base + to)) }

// fill sets fields, by name, and presses a form's button.
func (p *page) fill(fields map[string]string, button string) {
	p.Helper()
	for name, value := range fields {
		p.eval(fmt.Sprintf(`document.querySelector("main [name=%s]").value = %q`, name, value))
	}
	p.eval(fmt.Sprintf(`[...document.querySelectorAll("main button")].find((b) => b.textContent === %q).click()`, button))
}

// look checks that a page can be used in dark and light, on a phone and by a screen reader.
func (p *page) look(name string) {
	p.Helper()
	colors := map[string]string{}
	p.do(chromedp.EmulateViewport(360, 640))
	for _, scheme := range []string{"dark", "light"} {
		if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
			p.Fatal(err)
		}
		colors[scheme] = p.eval(`(() => { const s = document.body.appendChild(document.createElement("pre"));
			const c = getComputedStyle(s); const got = c.color + c.backgroundColor; s.remove(); return got; })()`)
		if wide := p.eval(`document.documentElement.scrollWidth + " of " + innerWidth`); wide != "360 of 360" {
			p.Errorf("%s, %s: %s pixels", name, scheme, wide)
		}
		if p.axe == "" || scheme == "light" && name != "a run" { // one page has all colours
			continue
		}
		p.do(chromedp.Evaluate[chromedp.Void](p.axe))
		said := p.eval(`axe.run({resultTypes: ["violations"]}).then((r) => JSON.stringify(r.violations.filter(
			(v) => v.impact === "serious" || v.impact === "critical").map((v) => v.id + ": " + v.nodes[0].html)))`)
		var found []string
		if err := json.Unmarshal([]byte(said), &found); err != nil || len(found) > 0 {
			p.Errorf("%s, %s: axe-core found %v %q", name, scheme, err, found)
		}
	}
	if colors["dark"] == colors["light"] {
		p.Errorf("%s: dark and light are the same: %s", name, colors["dark"])
	}
}

// axe returns axe-core's script, "" without npm.
func axe(t *testing.T) string {
	t.Helper()
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Log("no npm: hack/setup --test installs it")
		return ""
	}
	text, err := os.ReadFile(filepath.Join(testregistry.NPM(t, base, "axe", "axe-core@"+axeVersion), "node_modules",
		"axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// forms presses each button of a session: pause, resume, extend, and fork, which leads to the fork's page.
func (p *page) forms() {
	p.Helper()
	has := func(button string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("main button")].some((b) => b.textContent === %q)`, button)
	}
	p.fill(nil, "Pause")
	p.until(has("Resume"))
	p.fill(nil, "Resume")
	p.until(has("Pause"))
	p.fill(map[string]string{"minutes": "307445735"}, "Extend")
	p.until(`document.querySelector("h1").textContent === "It failed"`)
	p.eval(`history.back()`)
	p.until(has("Extend"))
	p.fill(map[string]string{"minutes": "30"}, "Extend")
	p.until(`document.querySelector("[name=minutes]")?.value === "60"`) // its page is loaded again
	parent := p.eval(`document.querySelector("main [name=session]").value`)
	p.fill(nil, "Fork")
	p.until(`document.querySelector("main [name=session]")?.value > ` + fmt.Sprintf("%q", parent))
	p.until(`document.body.innerText.includes("A fork of " + ` + fmt.Sprintf("%q", parent) + `)`)
	p.fill(map[string]string{"code": `x + 2`}, "Run")
	p.until(`[...document.querySelectorAll(".said")].some((s) => s.textContent.includes("43"))`)
	p.fill(nil, "End")
	p.until(`location.pathname.endsWith("/live")`)
}

// allow follows the link of a run's page that allows a refused host, reviews and writes the ceiling, and runs the code
// again. That run then asks, and the answer is permanent.
func (p *page) allow(host string) {
	p.Helper()
	p.eval(`[...document.querySelectorAll("main a")].find((a) => a.textContent.includes("allowed: ` + host + `")).click()`)
	p.until(`document.querySelector("pre")?.textContent.includes("+allowNet")`)
	p.look("a review")
	p.shot("review")
	p.fill(nil, "Write this")
	p.until(`document.body.innerText.includes("No file of the ceiling holds it back")`)
	p.fill(nil, "Run again")
	p.until(`location.pathname.endsWith("/run")`)
	run := p.eval(`location.search`)
	p.goTo("")
	p.until(`document.body.innerText.includes("asked.example")`)
	p.eval(`[...document.querySelectorAll("main a")].find((a) => a.textContent.includes("Always allow")).click()`)
	p.until(`document.querySelector("pre")?.textContent.includes('+host = "asked.example:80"')`)
	p.fill(nil, "Write this, and allow it")
	p.until(`document.body.innerText.includes("No run waits")`)
	p.goTo("run" + run)
	p.until(`document.body.innerText.includes("exited, exit code 3")`)
	if text := p.eval(`document.body.innerText`); strings.Contains(text, "What would allow it") {
		p.Errorf("%s is still refused:\n%s", host, text)
	}
}

// notified opts in to notifications, and opens the questions as if the page were hidden.
func (p *page) notified(host string) {
	p.Helper()
	hidden, err := chromedp.Call(p.ctx, cdppage.AddScriptToEvaluateOnNewDocument,
		cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: `window.told = [];
		Object.defineProperty(document, "hidden", { get: () => true });
		window.Notification = class {
			static permission = "default";
			static async requestPermission() { return this.permission = "granted"; }
			constructor(title, options) { told.push(title + ": " + options.body); }
		};
		if (localStorage.getItem("notify") === "yes") Notification.permission = "granted";`})
	if err != nil {
		p.Fatal(err)
	}
	p.goTo("")
	if told := p.eval(`told.length + document.getElementById("notify").textContent`); told != "0Notify me of questions" {
		p.Errorf("before somebody opted in: %s", told)
	}
	p.fill(nil, "Notify me of questions")
	p.until(`document.getElementById("notify").textContent === "Stop notifications"`)
	p.goTo("")
	p.until(fmt.Sprintf(`document.body.innerText.includes(%[1]q) && told.some((t) => t.includes(%[1]q))`, host))
	if _, err := chromedp.Call(p.ctx, cdppage.RemoveScriptToEvaluateOnNewDocument,
		cdppage.RemoveScriptToEvaluateOnNewDocumentParams(hidden)); err != nil {
		p.Fatal(err)
	}
	p.goTo("")
}

// typeLine types into what has the focus.
func (p *page) typeLine(text string) {
	p.Helper()
	if _, err := chromedp.Call(p.ctx, input.InsertText, input.InsertTextParams{Text: text}); err != nil {
		p.Fatal(err)
	}
	p.do(chromedp.KeyEvent("\r"))
}

// terminal opens a session's terminal, types, and returns to the session. Titles, links and clipboards of the machine
// have no effect there.
func (p *page) terminal() {
	p.Helper()
	session := p.eval(`location.href`)
	p.eval(`[...document.querySelectorAll("main a")].find((a) => a.textContent === "Open a terminal").click()`)
	p.until(`document.querySelector(".xterm-rows")?.innerText.includes("$") ||
		document.querySelector(".xterm-rows")?.innerText.includes("#")`)
	p.typeLine(`printf '\033]0;evil\007\033]8;;http://evil.example\007li''nk\033]8;;\007\033]52;c;ZXZpbA==\007'`)
	p.typeLine(`echo "$(printf '\033[31mre''d\033[0m') $((6*7))"`) // in one write: an echo can't divide it
	p.until(`document.querySelector(".xterm-rows").innerText.includes("red 42") &&
		document.querySelector(".xterm-rows").innerText.includes("link")`)
	seen := p.eval(`[document.title.includes("evil"), document.querySelectorAll("a[href*=evil]").length,
		getComputedStyle([...document.querySelectorAll(".xterm-rows span")].find(
			(s) => s.textContent.startsWith("red"))).color === getComputedStyle(
			document.querySelector(".xterm-rows")).color].join()`)
	if seen != "false,0,false" {
		p.Errorf("a title, a link, or no colour: %s", seen)
	}
	p.look("a terminal")
	p.typeLine("exit 3")
	p.until(`document.getElementById("said").textContent.includes("exit code 3")`)
	p.do(chromedp.Navigate(session))
	p.until(`document.querySelector("h1")?.textContent.includes("Session")`)
}

// dropped drops a file into the form, which the code reads.
func (p *page) dropped(file string) {
	p.Helper()
	if err := os.WriteFile(file, []byte("beside the code"), 0o600); err != nil {
		p.Fatal(err)
	}
	p.do(chromedp.SetUploadFiles(`input[name="files"]`, []string{file}))
	p.fill(map[string]string{"language": "js",
		"code": `console.log(require("fs").readFileSync("words.txt", "utf8"))`}, "Run")
	p.until(`location.pathname.endsWith("/run") &&
		document.getElementById("stdout")?.textContent.includes("beside the code")`)
	p.goTo("code")
}

// inside edits a step, runs it again, and looks at the session's files, values and project.
func (p *page) inside() {
	p.Helper()
	session := p.eval(`location.href`)
	p.eval(`[...document.querySelectorAll("main a")].find((a) => a.textContent === "Edit and run again").click()`)
	p.until(`document.getElementById("code")?.value.startsWith("globalThis.x = 41")`)
	p.fill(map[string]string{"code": `const fs = require("fs"); fs.mkdirSync("/work/.values", { recursive: true });
fs.writeFileSync("/work/.values/limits.json", '{"retries": 3}'); fs.writeFileSync("a.txt", "a"); "kept"`}, "Run")
	p.until(`[...document.querySelectorAll(".said")].some((s) => s.textContent.includes("kept"))`)
	for link, has := range map[string]string{"files of its folder": "a.txt, 1 bytes", "values": `"retries": 3`} {
		p.eval(`[...document.querySelectorAll("main a")].find((a) => a.textContent === "` + link + `").click()`)
		p.until(fmt.Sprintf(`document.querySelector("h1")?.textContent.includes("Session") &&
			document.body.innerText.replace(/":/, '": ').replace(/  /, " ").includes(%q)`, has))
	}
	p.look("a session's values")
	p.eval(`[...document.querySelectorAll("main a")].find((a) => a.textContent === "changes of its project").click()`)
	p.until(`document.body.innerText.includes("project")`)
	p.do(chromedp.Navigate(session))
	p.until(`document.querySelector("h1")?.textContent.includes("Session")`)
}

// TestConsole drives the pages as a person does: a run that asks, its picture, a refused host, and a session.
func TestConsole(t *testing.T) {
	if testing.Short() {
		t.Skip("boots real machines; not in -short")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: hack/setup --test installs it")
	}
	dir := testdir.Private(t)
	ceiling := filepath.Join(dir, ".unitask.toml")
	if err := os.WriteFile(ceiling, []byte("# mine\nask = [\"asked.example\"]\nallowNet = []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := open(t, chromium, serve(t, dir))
	p.goTo("code")
	p.look("code")
	p.dropped(filepath.Join(dir, "words.txt"))
	p.fill(map[string]string{"language": "js", "ask": "asked.example", "code": `console.log("up <b>");
const dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
require("fs").writeFileSync("/out/plot.png", Buffer.from(dot, "base64"));
fetch("http://asked.example/").catch(() => fetch("http://refused.example/"))
	.catch(() => { console.log("done"); process.exitCode = 3; })`}, "Run")
	p.until(`location.pathname.endsWith("/run")`)
	run := p.eval(`location.search`)
	p.until(`document.getElementById("stdout").textContent.includes("up <b>") && document.body.dataset.live`)
	p.notified("asked.example")
	p.look("a question")
	p.shot("question")
	p.fill(nil, "Deny")
	p.until(`document.body.innerText.includes("No run waits")`)
	p.goTo("run" + run)
	p.until(`document.body.innerText.includes("exited, exit code 3")`)
	p.until(`document.querySelector("figure img").naturalWidth === 1`)
	for _, want := range []string{`allowNet = ["refused.example"]`, "refused.example was not reached", "done"} {
		if text := p.eval(`document.body.innerText`); !strings.Contains(text, want) {
			t.Errorf("the run's page lacks %q:\n%s", want, text)
		}
	}
	p.look("a run")
	p.eval(`[...document.querySelectorAll("h2")].find((h) => h.textContent === "Network").scrollIntoView()`)
	p.shot("run")
	p.painted("run" + run)
	p.allow("refused.example")
	text, err := os.ReadFile(ceiling)
	want := "# mine\nask = [\"asked.example\"]\nallowNet = [\"refused.example\"]\n"
	if err != nil || string(text) != want {
		t.Errorf("the ceiling is now %q, %v", text, err)
	}
	p.goTo("live")
	p.fill(map[string]string{"image": "node", "name": "box"}, "Start a session")
	p.until(`location.pathname.endsWith("/session")`)
	p.fill(map[string]string{"code": `globalThis.x = 41; console.log("one")`}, "Run")
	p.until(`document.querySelector(".said")?.textContent.includes("one")`)
	p.fill(map[string]string{"code": `x + 1`}, "Run")
	p.until(`[...document.querySelectorAll(".said")].some((s) => s.textContent.includes("42"))`)
	p.look("a session")
	p.shot("session")
	p.inside()
	p.terminal()
	p.forms()
	p.goTo("live")
	p.look("live")
	p.fill(nil, "End")
	p.until(`document.body.innerText.includes("No session lives")`)
	for to, has := range map[string]string{"policy?url=example.com/x": "No: ", "audit": "lines are as they were written",
		"store": "audit log", "host": "No pool is up"} {
		p.goTo(to)
		p.until(fmt.Sprintf(`document.body.innerText.includes(%q)`, has))
		p.look(to)
	}
	p.goTo("host")
	p.fill(nil, "Examine this host")
	p.until(`document.body.innerText.includes("Doctor, at") && document.body.innerText.includes("boots in")`)
	p.elsewhere()
}

// elsewhere fails if a page made a request elsewhere.
func (p *page) elsewhere() {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.out) > 0 {
		p.Errorf("requests elsewhere: %q", p.out)
	}
}
