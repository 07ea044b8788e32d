package mcp

import (
	"bytes"
	"context"
	"fmt"
	"mime"
	"path"
	"strconv"
	"strings"
	"unicode"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/unseen"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Limits of what a result contains; the record has all of it.
const (
	partBytes  = 4 << 10 // of each part of inspect_run; its resource has all of it
	imageBytes = 1 << 20 // of a picture that is shown
	maxImages  = 4       // pictures that are shown
	maxListed  = 200     // artifacts, and runs of a list
	maxLines   = 10      // of a list in a text
	maxLinks   = 50      // links to artifacts beside a text
	maxLine    = 500     // bytes of a part of a line
	maxAbout   = 3 << 10 // bytes of the lines before the output, and as many of those behind it
)

// report returns a result as text for a model.
func report(res *unitask.Result) string {
	var before, behind bytes.Buffer
	if res.Outcome == unitask.OutcomeExited {
		fmt.Fprintf(&before, "exit code %d, %d ms", res.ExitCode, res.Duration.Run.Milliseconds())
	} else {
		fmt.Fprintf(&before, "%s: %s", res.Outcome, line(res.Error))
	}
	lines(&before, res.ShownHints(), maxLines, func(h run.Hint) string { return "hint: " + line(h.Text) })
	lines(&before, res.Policy.Denials, maxLines, func(d policy.Denial) string { return "not given: " + line(d.String()) })
	var b strings.Builder
	b.WriteString(atMost(before.String(), maxAbout))
	for _, stream := range []struct{ name, text string }{{"stdout", string(res.Stdout)}, {"stderr", string(res.Stderr)},
		{"value", res.Value}} {
		if stream.text != "" {
			fmt.Fprintf(&b, "\n--- %s\n%s", stream.name, stream.text)
		}
	}
	if res.Truncated {
		fmt.Fprintf(&behind, "\n(more was printed than the %d bytes a stream that are kept)",
			res.Policy.Effective.OutputBytes)
	}
	lines(&behind, res.ArtifactsRefused, maxLines, func(r record.Refusal) string {
		return fmt.Sprintf("not taken from /out: %s: %s", line(r.Path), line(r.Reason))
	})
	if more := len(res.Artifacts) - maxLinks; more > 0 {
		fmt.Fprintf(&behind, "\n(/out has %d more files: inspect_run lists them)", more)
	}
	return b.String() + atMost(behind.String(), maxAbout)
}

// line returns a text that hostile code may have chosen as a part of a line of a report.
func line(text string) string { return atMost(visible(text), maxLine) }

// atMost returns the first n bytes of a text, without an incomplete last character.
func atMost(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return text[:bounded.Whole([]byte(text[:n]))] + "…"
}

// visible escapes invisible characters in a text (control and formatting characters, line breaks). So a name that
// hostile code chose can't forge a line of a report.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsGraphic(r) && !unseen.Is(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
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
	for _, a := range res.Artifacts[:min(len(res.Artifacts), maxLinks)] {
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
