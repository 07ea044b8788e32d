package console

import (
	"bytes"
	"encoding/base64"
	"html/template"

	"github.com/unitask/unitask/internal/history"
)

// inlinePicture is a picture in a page that loads nothing.
type inlinePicture struct {
	Name string
	Src  template.HTMLAttr // with its data
}

// Picture is a file that a run left.
type Picture struct {
	Name string
	Data []byte
}

// AppPage returns the page for a client of MCP that shows a run when its result comes. It is one document that loads
// nothing.
func AppPage() (string, error) { return app(map[string]any{"Script": true}) }

// RunPage returns a run's page as one document, without scripts, links and requests. Of the files it shows those that
// begin as a picture.
func RunPage(in *history.Inspection, pictures []Picture) (string, error) {
	if in.Ended != nil {
		n, bytes := 0, 0
		for _, a := range in.Ended.Artifacts[:min(len(in.Ended.Artifacts), shownFiles)] {
			if bytes += len(a.Path); bytes > shownBytes {
				break
			}
			n++
		}
		if n < len(in.Ended.Artifacts) {
			in.Ended.Artifacts = in.Ended.Artifacts[:n]
			in.Cut = append(in.Cut, "the list of files")
		}
	}
	var list []inlinePicture
	for _, p := range pictures {
		if kind := raster(p.Data); kind != "" { // base64 needs no escapes, and html/template would make each + five bytes
			list = append(list, inlinePicture{p.Name,
				template.HTMLAttr(`src="data:` + kind + ";base64," + base64.StdEncoding.EncodeToString(p.Data) + `"`)})
		}
	}
	return app(map[string]any{"Run": in, "Inline": list})
}

func app(data map[string]any) (string, error) {
	style, err := files.ReadFile("page/style.css")
	if err != nil {
		return "", err
	}
	data["App"], data["Style"] = true, template.CSS(style)
	if data["Script"] != nil {
		script, err := files.ReadFile("page/app.js")
		if err != nil {
			return "", err
		}
		data["Script"] = template.JS(script)
	}
	var page bytes.Buffer
	err = pages.ExecuteTemplate(&page, "app.html", data)
	return page.String(), err
}
