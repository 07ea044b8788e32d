package toolhost

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/nesting"
)

// Limits of a server's list of tools.
const (
	MaxTools      = 512     // of one server
	maxPages      = 64      // of its list
	maxListBytes  = 4 << 20 // of the whole list
	maxListNested = 64      // brackets in one another
	maxListValues = 200_000 // JSON values
)

// Tool is a tool of a server, as its list describes it.
type Tool struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Input       any    `json:"inputSchema"`
	Output      any    `json:"outputSchema,omitempty"`
	Hints       any    `json:"annotations,omitempty"`

	schema *jsonschema.Resolved // of Input
	bad    error                // why it can't be called
}

// List is a server's list of tools, by name.
type List struct {
	Tools  []*Tool
	text   []byte // canonical: what the digest is of
	byName map[string]*Tool
}

// toolName matches names that can be part of a path.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$`)

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Digest returns "sha256:…" of the list.
func (l *List) Digest() string {
	sum := sha256.Sum256(l.text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ParseList reads a list in its canonical form: JSON, sorted by name.
func ParseList(text []byte) (*List, error) {
	if len(text) > maxListBytes {
		return nil, fmt.Errorf("the list of tools has more than %d bytes", maxListBytes)
	}
	if err := nesting.Check(text, maxListNested, maxListValues); err != nil {
		return nil, fmt.Errorf("the list of tools %w", err)
	}
	l := &List{byName: map[string]*Tool{}}
	if err := json.Unmarshal(text, &l.Tools); err != nil {
		return nil, fmt.Errorf("read list of tools: %w", err)
	}
	if len(l.Tools) > MaxTools {
		return nil, fmt.Errorf("the list has more than %d tools", MaxTools)
	}
	patterns := maxPatterns
	for _, t := range l.Tools {
		if t == nil {
			return nil, errors.New("the list has an entry that is no tool")
		}
		if l.byName[t.Name] != nil {
			return nil, fmt.Errorf("the list has two tools with the name %.100q", t.Name)
		}
		l.byName[t.Name] = t
		if !toolName.MatchString(t.Name) {
			t.bad = fmt.Errorf("%.100q is no name that code can call", t.Name)
			continue
		}
		t.schema, t.bad = resolve(t.Input, &patterns)
	}
	slices.SortFunc(l.Tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
	var err error
	l.text, err = json.Marshal(l.Tools)
	return l, err
}

// resolve prepares the schema of a tool's arguments. A reference to another document is an error: nothing is fetched.
func resolve(input any, patterns *int) (r *jsonschema.Resolved, err error) {
	defer func() {
		if recover() != nil { // the library was not written for hostile schemas
			err = errors.New("its schema can't be read")
		}
	}()
	if root, ok := input.(map[string]any); ok { // its $id names the document, and changes no reference within it
		root = maps.Clone(root)
		delete(root, "$id")
		input = root
	}
	if err := plainSchema(input, patterns); err != nil {
		return nil, err
	}
	text, err := json.Marshal(input)
	if err != nil {
		return nil, err
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, fmt.Errorf("its schema can't be read: %w", err)
	}
	if r, err = schema.Resolve(nil); err != nil {
		return nil, fmt.Errorf("its schema can't be read: %w", err)
	}
	return r, nil
}

// fetchList asks a server for its tools.
func (c *connection) fetchList(ctx context.Context) (*List, error) {
	defer c.endAfter(ctx)()
	tools := []*Tool{}
	cursor := ""
	for range maxPages {
		page, err := c.session.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, fmt.Errorf("list tools: %w", err)
		}
		for _, t := range page.Tools {
			tools = append(tools, &Tool{Name: t.Name, Title: t.Title, Description: t.Description, Input: t.InputSchema,
				Output: t.OutputSchema, Hints: t.Annotations})
		}
		if len(tools) > MaxTools {
			return nil, fmt.Errorf("list tools: more than %d", MaxTools)
		}
		if cursor = page.NextCursor; cursor == "" {
			slices.SortFunc(tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
			text, err := json.Marshal(tools)
			if err != nil {
				return nil, err
			}
			return ParseList(text)
		}
	}
	return nil, fmt.Errorf("list tools: more than %d pages", maxPages)
}

// Store is a folder with lists, by digest: those that were reviewed, or a run's own.
type Store string

func (s Store) file(digest string) string {
	return filepath.Join(string(s), strings.TrimPrefix(digest, "sha256:")+".json")
}

// Load returns the list with a digest.
func (s Store) Load(digest string) (*List, error) {
	if !digestForm.MatchString(digest) { // it may stand in a record
		return nil, fmt.Errorf("%.100q is no digest of a list", digest)
	}
	f, err := os.Open(s.file(digest))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := readAll(f, maxListBytes)
	if err != nil {
		return nil, err
	}
	l, err := ParseList(text)
	if err == nil && l.Digest() != digest {
		err = fmt.Errorf("%s was changed: unitask tools pin NAME writes it again", s.file(digest))
	}
	return l, err
}

// Save stores a list.
func (s Store) Save(l *List) error {
	if err := os.MkdirAll(string(s), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(s.file(l.Digest()), l.text, 0o600)
}
