package unitask_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/unitask/unitask"
	guestweb "github.com/unitask/unitask/guest/web"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/web"
	"github.com/unitask/unitask/policy"
)

const webPages = "testdata/webpages.txtar"

// convertPages converts the pages beside it, as the program does that fetches one.
const convertPages = `import fetch, glob, json, os
all = {}
for name in sorted(glob.glob('/pages/*.html')):
    page = {'url': 'https://pages.example/section/page'}
    with open(name, 'rb') as f:
        fetch.convert(f.read(), 'text/html', 'utf-8', False, {'as': 'markdown', 'maxBytes': 1 << 20}, page)
    links = ''.join(f'<{link["url"]}> {link["text"]}\n' for link in page['links'])
    all[os.path.basename(name)] = f'{page["title"]} {page["date"]}\n{links}\n{page["text"]}\n'
print(json.dumps(all))
`

// TestWebPages converts pages as different generators make them, in one machine, and compares them with the expected
// Markdown. -update writes the archive.
func TestWebPages(t *testing.T) {
	needVM(t)
	archive, err := txtar.ParseFile(webPages)
	if err != nil {
		t.Fatal(err)
	}
	pages, want := t.TempDir(), map[string]string{}
	for _, f := range archive.Files {
		if filepath.Ext(f.Name) != ".html" {
			want[strings.TrimSuffix(f.Name, ".md")+".html"] = string(f.Data)
		} else if err := os.WriteFile(filepath.Join(pages, f.Name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	res, err := unitask.Run(t.Context(), unitask.Request{Code: convertPages, Language: "python", Image: policy.WebImage,
		Kernel: image.Linux, InlineFiles: []unitask.InlineFile{{Name: "fetch.py", Content: guestweb.Program}},
		Dirs: []unitask.Mount{{Host: pages, Guest: "/pages"}}}, unitask.Options{Home: newHome(t)})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%v\n%s", err, res.Stderr)
	}
	got := map[string]string{}
	if err := json.Unmarshal(res.Stdout, &got); err != nil {
		t.Fatal(err)
	}
	updates := flag.Lookup("update").Value.String() == "true"
	updated := txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		if filepath.Ext(f.Name) != ".html" {
			continue
		}
		text := got[f.Name]
		if !updates && text != want[f.Name] {
			t.Errorf("%s: got\n%s\nwant\n%s", f.Name, text, want[f.Name])
		}
		updated.Files = append(updated.Files, f,
			txtar.File{Name: strings.TrimSuffix(f.Name, ".html") + ".md", Data: []byte(text)})
	}
	if updates {
		if err := os.WriteFile(webPages, txtar.Format(&updated), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if len(got) < 20 || len(want) != len(got) {
		t.Errorf("%d pages, %d expected texts", len(got), len(want))
	}
}

const article = "<!DOCTYPE html><title>A page</title><nav>Menu</nav><article><h1>Heading</h1><p>Some <b>text</b>, " +
	"and <a href='/other'>a link</a>.</p></article>"

// hostilePages are pages of good.example that try to use up what reads them, or to lead it elsewhere.
func hostilePages(private string) func(*http.ServeMux) {
	return func(m *http.ServeMux) {
		page := func(path, kind, text string) {
			m.HandleFunc("good.example"+path, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				fmt.Fprint(w, text)
			})
		}
		to := func(path, url string) {
			m.HandleFunc("good.example"+path, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", url)
				w.WriteHeader(http.StatusFound)
			})
		}
		endless := func(path, encoding string, wrap func(io.Writer) io.Writer) {
			m.HandleFunc("good.example"+path, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				w.Header().Set("Content-Encoding", encoding)
				out, some := wrap(w), []byte("<p>"+strings.Repeat("a word ", 9<<10)+"</p>")
				for n := 0; n < 1<<30 && r.Context().Err() == nil; n += len(some) {
					if _, err := out.Write(some); err != nil {
						return
					}
				}
			})
		}
		endless("/gigabyte", "identity", func(w io.Writer) io.Writer { return w })
		endless("/bomb", "gzip", func(w io.Writer) io.Writer { return gzip.NewWriter(w) })
		page("/page", "text/html; charset=utf-8", article)
		page("/deep", "text/html", strings.Repeat("<div><b><i><table><tr><td><a href=x>", 30_000)+"bottom")
		page("/empty", "text/html", "")
		page("/charset", "text/html; charset=utf-8", "<meta charset=shift_jis><p>caf\xe9 na\xefve, cr\xe8me br\xfbl\xe9e</p>")
		page("/hidden", "text/html", "<p>a\u202eb\u0007c\U000e0041d</p><p style='display: none'>unseen</p>")
		page("/binary", "application/octet-stream", "\x00\x01\xff\xfe")
		page("/report.pdf", "application/pdf", onePDF("Quarterly report"))
		page("/broken.pdf", "application/pdf", "%PDF-1.7\n"+strings.Repeat("1 0 obj << /Kids [1 0 R] >>", 1000))
		to("/metadata", "http://169.254.169.254/latest/meta-data/")
		to("/loopback", private)
		to("/resolved", "http://inside.example/")
		to("/file", "file:///etc/passwd")
		to("/wild", "https://a.b.wild.example/there")
		m.HandleFunc("good.example/again", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/again?"+r.URL.RawQuery+"x", http.StatusFound)
		})
		m.HandleFunc("good.example/brotli", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			fmt.Fprint(w, "x")
		})
		m.HandleFunc("good.example/markdown", func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.Header.Get("Accept"), "text/markdown") {
				w.Header().Set("Content-Type", "text/markdown")
				fmt.Fprint(w, "# The site's own\n")
			}
		})
	}
}

// onePDF returns a PDF of one page.
func onePDF(text string) string {
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	fmt.Fprintf(z, "BT /F1 24 Tf 72 720 Td (%s) Tj ET", text)
	z.Close()
	var out bytes.Buffer
	out.WriteString("%PDF-1.4\n")
	objects := []string{"<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
		"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
		fmt.Sprintf("<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream", packed.Len(), packed.String()),
		"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
		"<< /Title (The title) /CreationDate (D:20260102030405Z) >>"}
	var at []int
	for i, object := range objects {
		at = append(at, out.Len())
		fmt.Fprintf(&out, "%d 0 obj\n%s\nendobj\n", i+1, object)
	}
	start := out.Len()
	fmt.Fprintf(&out, "xref\n0 %d\n0000000000 65535 f \n", len(at)+1)
	for _, offset := range at {
		fmt.Fprintf(&out, "%010d 00000 n \n", offset)
	}
	fmt.Fprintf(&out, "trailer\n<< /Size %d /Root 1 0 R /Info 6 0 R >>\nstartxref\n%d\n%%%%EOF\n", len(at)+1, start)
	return out.String()
}

// answerAll fetches several pages, as the program fetches one.
const answerAll = `import fetch, json, sys
for plan in json.loads(sys.argv[1]):
    print(json.dumps(fetch.answer(plan)))
`

// webPlan and webAnswer are what the program in the machine reads and prints.
type webPlan struct {
	URL       string `json:"url"`
	As        string `json:"as"`
	MaxBytes  int    `json:"maxBytes"`
	Redirects int    `json:"redirects"`
}

type webAnswer struct {
	Error, Redirect, Title, Date, Text string
	Base64                             []byte
	Status                             int
	Truncated                          bool
}

// TestAttackWebFetchPages fetches hostile pages of a server on loopback, in one machine. Each ends in a bounded page or
// an error.
func TestAttackWebFetchPages(t *testing.T) {
	needVM(t)
	site := newSite(t, hostilePages("http://127.0.0.1:1/"))
	cases := webCases()
	var plans []webPlan
	for _, c := range cases {
		plans = append(plans, webPlan{URL: "http://good.example" + c.path, As: cmp.Or(c.as, "markdown"),
			MaxBytes: cmp.Or(c.most, 100_000), Redirects: 10})
	}
	text, err := json.Marshal(plans)
	if err != nil {
		t.Fatal(err)
	}
	res, err := unitask.Run(t.Context(), unitask.Request{Code: answerAll, Language: "python", Image: policy.WebImage,
		Kernel: image.Linux, InlineFiles: []unitask.InlineFile{{Name: "fetch.py", Content: guestweb.Program}},
		Args: []string{string(text)}, AllowNet: []string{"good.example"}, Timeout: 3 * time.Minute},
		unitask.Options{Home: newHome(t), Upstream: site.upstream})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%v\n%s", err, res.Stderr)
	}
	lines := strings.Split(strings.TrimSpace(string(res.Stdout)), "\n")
	if len(lines) != len(cases) {
		t.Fatalf("%d answers for %d pages", len(lines), len(cases))
	}
	for i, c := range cases {
		var is webAnswer
		if err := json.Unmarshal([]byte(lines[i]), &is); err != nil {
			t.Fatal(err)
		}
		saw := "as wanted"
		if is.Error != c.fails && (c.fails == "" || !strings.Contains(is.Error, c.fails)) ||
			!strings.Contains(is.Text, c.text) || c.is != nil && !c.is(is) {
			is.Text = is.Text[:min(len(is.Text), 200)]
			saw = fmt.Sprintf("%+v, want %q %s", is, c.text, c.fails)
		}
		attack.Check(t, fmt.Sprintf("the page %s %s", c.path, c.as), "as wanted", saw)
	}
}

type webCase struct {
	path, as    string
	most        int
	text, fails string // a part of the text, or of the error
	is          func(webAnswer) bool
}

func webCases() []webCase {
	short := func(p webAnswer) bool { return p.Truncated && len(p.Text) <= 1000 }
	return []webCase{
		{path: "/page", as: "text", text: "Heading\n\nSome text, and a link."},
		{path: "/page", as: "html", text: "<nav>Menu"},
		{path: "/page", as: "raw", most: 10, is: func(p webAnswer) bool { return p.Text == article[:10] && p.Truncated }},
		{path: "/markdown", text: "# The site's own"},
		{path: "/gigabyte", most: 1000, text: "a word", is: short},
		{path: "/bomb", as: "html", most: 1000, text: "a word", is: short},
		{path: "/bomb", as: "raw", most: 1000, is: short},
		{path: "/deep", is: func(p webAnswer) bool { return p.Status == 200 }},
		{path: "/empty", is: func(p webAnswer) bool { return p.Text == "" && p.Status == 200 }},
		{path: "/charset", text: "café naïve, crème brûlée"},
		{path: "/hidden", is: func(p webAnswer) bool { return !strings.Contains(p.Text, "unseen") }},
		{path: "/binary", fails: "no text: as raw gives its bytes"},
		{path: "/binary", as: "raw", is: func(p webAnswer) bool { return string(p.Base64) == "\x00\x01\xff\xfe" }},
		{path: "/report.pdf", text: "Quarterly report",
			is: func(p webAnswer) bool { return p.Title == "The title" && p.Date == "2026-01-02" }},
		{path: "/broken.pdf", fails: "PDF that can't be read"},
		{path: "/brotli", fails: "which was not asked for"},
		{path: "/again", fails: "too many redirects"},
		{path: "/metadata", is: func(p webAnswer) bool { return strings.HasPrefix(p.Redirect, "http://169.254.169.254/") }},
		{path: "/file", is: func(p webAnswer) bool { return p.Redirect == "file:///etc/passwd" }},
	}
}

// TestAttackWebFetch fetches pages, one machine for each host. Nothing that the policy does not allow is reached.
func TestAttackWebFetch(t *testing.T) {
	needVM(t)
	reached := make(chan string, 10)
	private := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached <- r.URL.Path }))
	t.Cleanup(private.Close)
	site := newSite(t, hostilePages(private.URL))
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Upstream: site.upstream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	const here, wild = `allowNet = ["good.example"]`, `allowNet = ["good.example", "*.wild.example"]`
	for _, c := range []struct{ path, ceiling, text, fails string }{
		{"/page", here, "# Heading\n\nSome **text**, and [a link](https://good.example/other).", ""},
		{"/wild", wild, "HTTP/1.1 GET a.b.wild.example", ""},
		{"/wild", here, "", "the page redirects to \"https://a.b.wild.example/there\", and a.b.wild.example is not allowed"},
		{"/metadata", "", "", "connect to 169.254.169.254"},
		{"/loopback", "", "", "connect to 127.0.0.1"},
		{"/resolved", "", "", "connect to inside.example"},
		{"/file", "", "", "must begin with https://"},
		{"/page", "webFetch = false", "", "webFetch = true does"},
	} {
		ceiling, err := policy.ParseCeiling("/x/.unitask.toml", []byte(c.ceiling))
		if err != nil {
			t.Fatal(err)
		}
		f := web.Fetcher{Ceiling: ceiling, Run: func(ctx context.Context, req unitask.Request) (*unitask.Result, error) {
			return rt.RunFor(ctx, unitask.Caller{Ceiling: ceiling}, req, unitask.IO{})
		}}
		page, err := f.Fetch(t.Context(), web.Request{URL: "https://good.example" + c.path, CA: site.ca})
		want, saw := cmp.Or(c.fails, c.text), fmt.Sprint(err)
		if err == nil {
			saw = page.Text
		}
		if (err == nil) == (c.fails == "") && strings.Contains(saw, want) {
			saw = want
		}
		attack.Check(t, fmt.Sprintf("fetch %s under %q", c.path, c.ceiling), want, saw)
	}
	attack.Check(t, "requests that reached loopback", "0", fmt.Sprint(len(reached)))
}
