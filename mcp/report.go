package mcp

import (
	"context"
	"fmt"
	"mime"
	"path"
	"strconv"
	"strings"
	"unicode"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// Limits of what a result contains; the record has all of it.
const (
	shownBytes = 256 << 10 // of each stream
	partBytes  = 64 << 10  // of each part of inspect_run
	imageBytes = 1 << 20   // of a picture that is shown
	maxImages  = 4
	maxListed  = 200
)

// report returns a result as text for a model.
func report(res *unitask.Result) string {
	var b strings.Builder
	if res.Outcome == unitask.OutcomeExited {
		fmt.Fprintf(&b, "exit code %d, %d ms", res.ExitCode, res.Duration.Run.Milliseconds())
	} else {
		fmt.Fprintf(&b, "%s: %s", res.Outcome, visible(res.Error))
	}
	for _, h := range res.ShownHints() {
		fmt.Fprintf(&b, "\nhint: %s", visible(h.Text))
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

// visible escapes invisible characters in a text (control and formatting characters, line breaks): a name that
// hostile code chose can't forge a line of a report.
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

// pictures returns the artifacts of a run that its result shows.
func pictures(res *unitask.Result) (shown map[string]bool, bytes int64) {
	shown = map[string]bool{}
	for _, a := range res.Artifacts {
		switch mimeType(a.Path) {
		case "image/png", "image/jpeg", "image/gif", "image/webp":
			if a.Size <= imageBytes && len(shown) < maxImages {
				shown[a.Path] = true
				bytes += a.Size
			}
		}
	}
	return shown, bytes
}

// artifacts returns links to the files in /out, and the given pictures themselves.
func (s *Server) artifacts(res *unitask.Result, shown map[string]bool) (out []sdk.Content) {
	for _, a := range res.Artifacts {
		size, kind := a.Size, mimeType(a.Path)
		if shown[a.Path] {
			if data, err := s.readPicture(res.RunID, a.Path); err == nil {
				out = append(out, &sdk.ImageContent{Data: data, MIMEType: kind})
			}
		}
		out = append(out, &sdk.ResourceLink{URI: artifactURI(res.RunID, a.Path), Name: visible(a.Path), MIMEType: kind,
			Size: &size})
	}
	return out
}

// result returns an ended run in the form for clients. Its memory is reserved before it is built. If there is no
// room for long, it is sent without its output and pictures, which are resources.
func (s *Server) result(ctx context.Context, caller unitask.Caller, res *unitask.Result,
	printed *streams) *sdk.CallToolResult {
	shown, bytes := pictures(res)
	cost := bytes/3*4 + 2*(textSize(string(res.Stdout))+textSize(string(res.Stderr))+textSize(res.Value)) +
		jsonSize(res.Artifacts)*2
	if err := leaseOf(ctx).draw(ctx, cost, answerPatience); err != nil {
		shown = nil
		printed.forget()
		printed.show(res)
	}
	if remote(caller) {
		s.hider.result(res)
	}
	return &sdk.CallToolResult{IsError: res.Outcome != unitask.OutcomeExited || res.ExitCode != 0,
		Content: append([]sdk.Content{&sdk.TextContent{Text: report(res)}}, s.artifacts(res, shown)...)}
}

// mimeType returns a file's MIME type from its extension.
func mimeType(name string) string {
	kind, _, _ := strings.Cut(mime.TypeByExtension(path.Ext(name)), ";")
	if kind == "" {
		return "application/octet-stream"
	}
	return kind
}
