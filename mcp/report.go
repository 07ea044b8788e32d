package mcp

import (
	"fmt"
	"mime"
	"path"
	"strconv"
	"strings"
	"unicode"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// Bounds of what a result carries; the record has all of it.
const (
	shownBytes = 256 << 10 // of each stream
	partBytes  = 64 << 10  // of each part of inspect_run
	imageBytes = 1 << 20   // of a picture that is shown
	maxImages  = 4
	maxListed  = 200
)

// report is a result as a model reads it.
func report(res *unitask.Result) string {
	var b strings.Builder
	if res.Outcome == unitask.OutcomeExited {
		fmt.Fprintf(&b, "exit code %d, %d ms", res.ExitCode, res.Duration.Run.Milliseconds())
	} else {
		fmt.Fprintf(&b, "%s: %s", res.Outcome, visible(res.Error))
	}
	if res.Hint != "" {
		fmt.Fprintf(&b, "\n%s", visible(res.Hint))
	}
	for _, d := range res.Policy.Denials {
		fmt.Fprintf(&b, "\nnot given: %s", visible(d.String()))
	}
	for _, stream := range []struct {
		name string
		text []byte
	}{{"stdout", res.Stdout}, {"stderr", res.Stderr}} {
		if len(stream.text) > 0 {
			fmt.Fprintf(&b, "\n--- %s\n%s", stream.name, strings.ToValidUTF8(string(stream.text), "\ufffd"))
		}
	}
	if res.Value != "" {
		fmt.Fprintf(&b, "\n--- value\n%s", strings.ToValidUTF8(res.Value, "\ufffd"))
	}
	if res.Truncated {
		fmt.Fprintf(&b, "\n(more was printed than the %d bytes a stream that are kept)", res.Policy.Effective.OutputBytes)
	}
	for _, r := range res.ArtifactsRefused {
		fmt.Fprintf(&b, "\nnot taken from /out: %s: %s", visible(r.Path), visible(r.Reason))
	}
	return b.String()
}

// visible is a text with what can't be seen in it (control and formatting characters,
// line breaks) as escapes: a name that hostile code chose can't forge a line of a report.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsGraphic(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToGraphic(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// artifacts are links to what the code left in /out, and small pictures themselves.
func (s *Server) artifacts(res *unitask.Result) (out []sdk.Content) {
	images := 0
	for _, a := range res.Artifacts {
		size, kind := a.Size, mimeType(a.Path)
		switch kind {
		case "image/png", "image/jpeg", "image/gif", "image/webp":
			if size <= imageBytes && images < maxImages {
				if data, err := s.readArtifact(res.RunID, a.Path); err == nil {
					out = append(out, &sdk.ImageContent{Data: data, MIMEType: kind})
					images++
				}
			}
		}
		out = append(out, &sdk.ResourceLink{URI: artifactURI(res.RunID, a.Path), Name: visible(a.Path), MIMEType: kind, Size: &size})
	}
	return out
}

// mimeType is a file's by its extension.
func mimeType(name string) string {
	kind, _, _ := strings.Cut(mime.TypeByExtension(path.Ext(name)), ";")
	if kind == "" {
		return "application/octet-stream"
	}
	return kind
}
