package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/changes"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// The tool host_files lists and reads files of the host, and proposes changes to them. It exists only on a server's
// stdin and stdout, and only if the ceiling has hostFiles = true or writeUnder. A change is applied after its user has
// seen the whole diff: in a form, or by unitask apply.

// fileArgs are host_files' arguments.
type fileArgs struct {
	Op     string  `json:"op"`
	Path   string  `json:"path"`
	Text   *string `json:"text,omitempty"`
	From   string  `json:"from,omitempty"`
	Offset int64   `json:"offset,omitempty"`
}

var fileDescriptions = map[string]string{
	"op": "list a folder, read a text file, write a file's new text, or copy a file to path; " +
		"the last two propose a change, which the user applies or denies",
	"path":   "of the host; relative ones begin at the server's folder",
	"text":   "with write: the file's whole new text",
	"from":   "with copy: a file of the host, or the URI of an artifact (unitask://runs/ID/artifacts/NAME)",
	"offset": "with read: the first byte",
}

// Limits of host_files.
const (
	maxHostListed = 1000     // entries of a folder
	maxHostRead   = 64 << 10 // bytes of a file in one answer
	maxFormBytes  = 4000     // of a diff in a form
	maxWaiting    = 20       // proposed changes of a day
)

// fileResult is what host_files found or did.
type fileResult struct {
	Path    string      `json:"path,omitempty"`
	Entries []fileEntry `json:"entries,omitempty"`
	More    bool        `json:"more,omitempty"`  // there are more entries
	Bytes   int64       `json:"bytes,omitempty"` // of the whole file
	Next    int64       `json:"next,omitempty"`  // the offset of the rest
	Change  string      `json:"change,omitempty"`
	State   string      `json:"state,omitempty"`
}

type fileEntry struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"` // file, folder, link, pipe, socket or device
	Bytes int64  `json:"bytes,omitempty"`
}

// addHostFiles adds host_files, if the ceiling allows it.
func (s *Server) addHostFiles() {
	var ops []string
	if s.opts.Ceiling.ReadsHostFiles() {
		ops = append(ops, "list", "read")
	}
	if s.opts.Ceiling.WritesHostFiles() {
		ops = append(ops, "write", "copy")
	}
	if ops == nil {
		return
	}
	yes := true
	addTool(s, &sdk.Tool{
		Name: "host_files", Title: "Read and change the host's files",
		Description: "List and read files of the host, and propose changes to them, where the user's ceiling allows it. " +
			"Code in a machine does not see these files: run_code's files and dirs bring them.",
		InputSchema: inputSchema[fileArgs](fileDescriptions, func(p map[string]*jsonschema.Schema) {
			p["op"].Enum = anys(ops)
			p["offset"].Minimum = new(float64)
		}),
		OutputSchema: outputSchema[fileResult](nil),
		Annotations:  &sdk.ToolAnnotations{DestructiveHint: &yes},
	}, told(s, s.hostFiles))
}

func (s *Server) hostFiles(ctx context.Context, req *sdk.CallToolRequest, in fileArgs) (*sdk.CallToolResult, any,
	error) {
	caller := s.caller(req.Extra)
	if remote(caller) {
		return nil, nil, errors.New("host_files is for the server's own user")
	}
	done, err := s.begin()
	if err != nil {
		return nil, nil, err
	}
	defer done()
	switch in.Op {
	case "list":
		return s.listFolder(caller, in.Path)
	case "read":
		return s.readHostFile(caller, in.Path, in.Offset)
	}
	run := func(ctx context.Context, ask asker) (*sdk.CallToolResult, any, error) {
		return s.propose(ctx, caller, in, ask)
	}
	if inRounds(caller, req) {
		return s.round(ctx, caller, req, run)
	}
	return run(ctx, askerOf(ctx, caller, req))
}

// findHostFile finds a path of the host, which may be missing.
func (s *Server) findHostFile(path string, dir bool) (*hostfiles.Found, error) {
	if path != "" && !filepath.IsAbs(path) {
		path = filepath.Join(s.opts.Dir, path)
	}
	found, err := hostfiles.Find(path, dir)
	if err != nil {
		return nil, fmt.Errorf("path %.200q %w", path, err)
	}
	return found, nil
}

// outside is the answer for each path that a ceiling does not allow, whether it exists or not.
func outside(path, key string) error {
	return fmt.Errorf("path %.200q is not below a folder of the ceiling's %s", path, key)
}

func (s *Server) listFolder(caller unitask.Caller, path string) (*sdk.CallToolResult, any, error) {
	found, err := s.findHostFile(path, true)
	if err != nil {
		return nil, nil, err
	}
	defer found.Close()
	if !caller.Ceiling.ListsHostFolder(found.Real) {
		return nil, nil, outside(path, "dirsUnder")
	}
	root, err := found.OpenRoot()
	if err != nil {
		return nil, nil, fmt.Errorf("path %.200q: %w", path, err)
	}
	defer root.Close()
	folder, err := root.Open(".")
	if err != nil {
		return nil, nil, err
	}
	defer folder.Close()
	out := &fileResult{Path: found.Real}
	list, err := folder.ReadDir(maxHostListed + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	var text strings.Builder
	if out.More = len(list) > maxHostListed; out.More {
		list = list[:maxHostListed]
		fmt.Fprintf(&text, "%d of the folder's entries:\n", maxHostListed)
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, d := range list {
		e := fileEntry{Name: d.Name(), Kind: hostfiles.KindOf(d.Type())}
		if st, err := d.Info(); err == nil && d.Type().IsRegular() {
			e.Bytes = st.Size()
		}
		out.Entries = append(out.Entries, e)
		fmt.Fprintf(&text, "%s\t%s\t%d\n", e.Kind, visible(e.Name), e.Bytes)
	}
	if len(list) == 0 {
		text.WriteString("the folder is empty")
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text.String()}}}, out, nil
}

func (s *Server) readHostFile(caller unitask.Caller, path string, from int64) (*sdk.CallToolResult, any, error) {
	f, size, real, err := s.openHostFile(caller, path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if from < 0 || from > size {
		return nil, nil, fmt.Errorf("offset %d: the file has %d bytes", from, size)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, from, maxHostRead))
	if err != nil {
		return nil, nil, err
	}
	end := from + int64(len(data))
	for cut := 0; cut < utf8.UTFMax && end < size && len(data) > 0 && !utf8.Valid(data); cut++ { // half a character
		data, end = data[:len(data)-1], end-1
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, nil, fmt.Errorf("path %.200q is not text in UTF-8: run_code's files bring it into a machine", path)
	}
	out := &fileResult{Path: real, Bytes: size}
	text := string(data)
	if end < size {
		out.Next = end
		text += fmt.Sprintf("\n[%d of %d bytes; offset %d has the rest]", len(data), size, end)
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, out, nil
}

// hostFile is an open file of the host.
type hostFile interface {
	io.ReadCloser
	io.ReaderAt
}

func (s *Server) openHostFile(caller unitask.Caller, path string) (f hostFile, size int64, real string, err error) {
	found, err := s.findHostFile(path, false)
	if err != nil {
		return nil, 0, "", err
	}
	defer found.Close()
	if !caller.Ceiling.ReadsHostFile(found.Real) {
		return nil, 0, "", outside(path, "filesUnder")
	}
	file, err := found.Open()
	if err != nil {
		return nil, 0, "", fmt.Errorf("path %.200q: %w", path, err)
	}
	st, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, 0, "", err
	}
	return file, st.Size(), found.Real, nil
}

// propose stores a change, asks the caller's user about it, and applies it if the user agrees.
func (s *Server) propose(ctx context.Context, caller unitask.Caller, in fileArgs, ask asker) (*sdk.CallToolResult,
	any, error) {
	open, err := s.newText(caller, in)
	if err != nil {
		return nil, nil, err
	}
	found, err := s.findHostFile(in.Path, false)
	if err != nil {
		return nil, nil, err
	}
	found.Close()
	dir, named, ok := caller.Ceiling.WriteFolder(found.Real)
	if !ok || s.guarded(found.Real) {
		return nil, nil, outside(in.Path, "writeUnder")
	}
	name, err := filepath.Rel(dir, found.Real)
	if err != nil {
		return nil, nil, err
	}
	store := changes.Open(s.rt.Images().Home(), s.rt.Audit())
	if n := waiting(store, caller.Name); n >= maxWaiting {
		return nil, nil, fmt.Errorf("%d changes wait for their user, who applies them by unitask apply", n)
	}
	set, left, err := store.Propose(dir, "", caller.Name, []changes.File{{Path: filepath.ToSlash(name), Named: named,
		Open: open}})
	if len(left) > 0 {
		return nil, nil, fmt.Errorf("path %.200q: %s", in.Path, left[0].Reason)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("path %.200q: %w", in.Path, err)
	}
	return s.askAndApply(ctx, store, set, ask, caller.Ceiling.ReadsHostFile(found.Real))
}

// waiting returns how many changes that a caller proposed in the last day nobody has applied or denied.
func waiting(store *changes.Store, by string) (n int) {
	list, _ := store.List()
	for _, set := range list {
		if set.By == by && set.State == changes.Proposed && time.Since(set.Created) < 24*time.Hour {
			n++
		}
	}
	return n
}

// newText returns the text of a proposed file.
func (s *Server) newText(caller unitask.Caller, in fileArgs) (func() (io.ReadCloser, error), error) {
	switch {
	case in.Op == "write" && in.Text == nil:
		return nil, errors.New("text is missing: the file's whole new text")
	case in.Op == "write" && in.From != "", in.Op == "copy" && in.Text != nil:
		return nil, errors.New("op write takes text, op copy takes from")
	case in.Op == "write":
		return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(*in.Text)), nil }, nil
	case in.From == "":
		return nil, errors.New("from is missing: a file of the host, or the URI of an artifact")
	case !strings.HasPrefix(in.From, runsURI):
		return func() (io.ReadCloser, error) {
			f, _, _, err := s.openHostFile(caller, in.From)
			return f, err
		}, nil
	}
	return func() (io.ReadCloser, error) { return s.openArtifactOf(caller, in.From) }, nil
}

// openArtifactOf opens an artifact of a caller's run by its URI.
func (s *Server) openArtifactOf(caller unitask.Caller, uri string) (io.ReadCloser, error) {
	id, name, _ := strings.Cut(strings.TrimPrefix(uri, runsURI), "/artifacts/")
	name, err := url.PathUnescape(name)
	if err != nil {
		return nil, fmt.Errorf("from %.200q: %w", uri, err)
	}
	rec, err := s.rt.Runs().Get(id)
	if err == nil && !sees(caller)(rec.Owner, rec.Via) {
		err = record.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("from %.200q: %w", uri, err)
	}
	return s.rt.Runs().OpenArtifact(id, name)
}

// guarded reports whether a file belongs to unitask itself: to its home, or as a policy of this server.
func (s *Server) guarded(real string) bool {
	if home, err := realpath.Of(s.rt.Images().Home()); err != nil || policy.Within(home, real) {
		return true
	}
	for p := s.opts.Policy; p != nil; p = p.Above {
		if file, err := realpath.Of(p.File); p.File != "" && (err != nil || file == real) {
			return true
		}
	}
	return false
}

// askAndApply shows the whole diff to a user, and applies the change if the user agrees. Only a model that may read the
// file gets the diff, which has the old text.
func (s *Server) askAndApply(ctx context.Context, store *changes.Store, set *changes.Set, ask asker, reads bool) (
	*sdk.CallToolResult, any, error) {
	var diff strings.Builder
	unshown, err := store.Diff(&diff, set)
	if err != nil {
		return nil, nil, err
	}
	text := fmt.Sprintf("Nothing is changed yet. The user applies the change with: unitask apply %s", set.ID)
	if ask != nil && diff.Len() <= maxFormBytes && unshown == 0 {
		asked, cancel := context.WithTimeout(ctx, approval.Patience)
		defer cancel()
		until := time.Now().Add(approval.Patience)
		switch ask(asked, func() *sdk.ElicitParams {
			return yesOrNo(fmt.Sprintf("A model wants to change a file below %s on this host. The call waits for %s at most. "+
				"The change is:\n%s", visible(set.Dir), time.Until(until).Round(time.Second), &diff), "Change the file?", "No",
				"Yes, this change")
		}) {
		case unitask.AllowOnce:
			applied, err := store.Apply(set.ID)
			if err != nil {
				return nil, nil, err
			}
			set, text = applied, "The user agreed, and the file is changed."
		case "":
			text = "Nobody answered. " + text
		default:
			return nil, nil, errors.Join(fmt.Errorf("%s was not applied: its user denied it", set.ID),
				store.Refuse(set, "its user denied it"), store.Remove(set.ID))
		}
	}
	if reads && diff.Len() <= maxHostRead {
		text += "\n" + diff.String()
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}},
		&fileResult{Path: filepath.Join(set.Dir, set.Changes[0].Path), Change: set.ID, State: string(set.State)}, nil
}
