package jupyter

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/unitask/unitask/internal/nesting"
)

// A client shows the HTML of a cell with its scripts, in the page of Jupyter. There a script can start programs on the
// host. Markdown, SVG and JavaScript do the same. What a browser fetches for a picture in HTML leaves
// the host past the policy. So the forms of a value are rewritten: none of them runs a script or fetches anything.

// Limits of JSON that is shown: clients read it recursively, and draw all of it.
const (
	maxDepthShown = 32       // brackets in one another
	maxShown      = 64 << 10 // values
)

// pictures are types that clients put into an image of the page.
var pictures = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true}

// forms returns the forms of a value that clients may show, by MIME type.
func (s *server) forms(data map[string]json.RawMessage) map[string]any {
	list := map[string]any{}
	if s.TrustOutput {
		for kind, value := range data {
			list[kind] = value
		}
		return list
	}
	var left []string
	for kind, value := range data {
		var text string
		isText := json.Unmarshal(value, &text) == nil
		switch {
		case kind == "application/json":
			if nesting.Check(value, maxDepthShown, maxShown) == nil {
				list[kind] = value
			}
		case !isText:
			left = append(left, kind)
		case kind == "text/plain":
			list[kind] = text
		case pictures[kind]:
			if clean, ok := base64Of(text); ok {
				list[kind] = clean
			}
		case kind == "text/html":
			list[kind] = safeHTML(text)
		case kind == "image/svg+xml":
			// In an image a browser neither runs scripts nor fetches.
			if _, has := data["text/html"]; !has {
				list["text/html"] = `<img src="data:image/svg+xml;base64,` + base64.StdEncoding.EncodeToString([]byte(text)) + `">`
			}
		case kind == "text/markdown" || kind == "text/latex":
			if safeFormulas(text) && !(kind == "text/markdown" && unsafeMarkdown.MatchString(text)) &&
				!strings.Contains(text, "<") {
				list[kind] = text
			} else if _, has := data["text/html"]; !has { // shown as it is written
				list["text/html"] = "<pre>" + escaped.Replace(text) + "</pre>"
			}
		default:
			left = append(left, kind)
		}
	}
	if _, has := list["text/plain"]; !has && len(list) == 0 && len(left) > 0 {
		list["text/plain"] = "[not shown: unitask passes this type of output on only with --trust-output]"
	}
	return list
}

// metadata returns the sizes of pictures: nothing else of the metadata passes.
func (s *server) metadata(of map[string]json.RawMessage) map[string]any {
	list := map[string]any{}
	for kind, value := range of {
		if s.TrustOutput {
			list[kind] = value
			continue
		}
		var size struct {
			Width  int `json:"width,omitempty"`
			Height int `json:"height,omitempty"`
		}
		if pictures[kind] && json.Unmarshal(value, &size) == nil && min(size.Width, size.Height) >= 0 {
			list[kind] = size
		}
	}
	return list
}

// base64Of checks base64, and returns it without anything else: some clients put it into HTML unchecked.
func base64Of(text string) (clean string, ok bool) {
	clean = strings.Map(func(r rune) rune {
		if strings.ContainsRune(" \t\r\n", r) {
			return -1
		}
		return r
	}, text)
	_, err := base64.StdEncoding.DecodeString(clean)
	return clean, err == nil
}

// unsafeMarkdown matches what may become a link, a picture or HTML in Markdown. JupyterLab draws diagrams of Mermaid in
// its page, with pictures from anywhere.
var unsafeMarkdown = regexp.MustCompile(`(?i)[<&\]]|mermaid`)

var escaped = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;", "$", "&#36;",
	`\`, "&#92;")
