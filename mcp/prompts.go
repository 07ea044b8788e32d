package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/exact"
	"github.com/unitask/unitask/internal/language"
)

// snippet is a file with code in the prompts folder, by its name. It may begin with front matter, which is TOML in a
// comment:
//
//	/* +++
//	description = "Sum a column of a CSV file"
//	[arguments.COLUMN]
//	description = "its name"
//	required = true
//	+++ */
//
// In Python and shell, each line of the front matter is a comment that begins with #. The code gets the arguments as
// environment variables.
type snippet struct {
	name, file, code string
	Description      string `toml:"description"`
	Arguments        map[string]struct {
		Description string `toml:"description"`
		Required    bool   `toml:"required"`
	} `toml:"arguments"`
}

// Limits on a folder of snippets.
const (
	maxSnippets = 1000    // files
	maxSnippet  = 1 << 20 // bytes of a file
)

var (
	frontMatter = regexp.MustCompile(`(?s)^\s*/\*\s*\+\+\+\r?\n(.*?)\n\s*\+\+\+\s*\*/`)
	frontLines  = regexp.MustCompile(`^(?:#!.*\n)?\s*# *\+\+\+\r?\n((?:#.*\n)*?)# *\+\+\+\r?(?:\n|$)`)
	commented   = regexp.MustCompile(`(?m)^# ?`)
)

// readSnippets reads a folder; "" means no snippets.
func readSnippets(dir string) (map[string]*snippet, error) {
	found := map[string]*snippet{}
	if dir == "" {
		return found, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("prompts: %w", err)
	}
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if of, err := language.Extension(strings.TrimPrefix(ext, ".")); err != nil || of != ext {
			continue
		}
		s, err := readSnippet(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("prompt %s: %w", e.Name(), err)
		}
		if found[s.name] != nil {
			return nil, fmt.Errorf("prompt %s: %s has the same name", e.Name(), found[s.name].file)
		}
		if found[s.name] = s; len(found) > maxSnippets {
			return nil, fmt.Errorf("prompts: %s has more than %d", dir, maxSnippets)
		}
	}
	return found, nil
}

func readSnippet(name string) (*snippet, error) {
	// A link leads to a file that nobody put into the folder, and a pipe never ends.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, errors.New("is a link, and links are not followed: put the file itself there")
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSnippet+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxSnippet:
		return nil, fmt.Errorf("has more than %d bytes", maxSnippet)
	case !utf8.Valid(text):
		return nil, fmt.Errorf("is not UTF-8 text")
	}
	file := filepath.Base(name)
	s := &snippet{name: strings.TrimSuffix(file, filepath.Ext(file)), file: file, code: string(text)}
	front, hashes := frontMatter, filepath.Ext(file) != "" && !strings.HasSuffix(filepath.Ext(file), "js") &&
		!strings.HasSuffix(filepath.Ext(file), "ts")
	if hashes {
		front = frontLines
	}
	if m := front.FindSubmatch(text); m != nil {
		if hashes {
			m[1] = commented.ReplaceAll(m[1], nil)
		}
		if _, err := exact.Decode(string(m[1]), s); err != nil {
			return nil, fmt.Errorf("front matter: %w", err)
		}
	}
	return s, nil
}

// missing returns the required arguments that are absent.
func (s *snippet) missing(given map[string]string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Arguments)) {
		if _, ok := given[name]; !ok && s.Arguments[name].Required {
			names = append(names, name)
		}
	}
	return names
}

func (s *Server) addPrompts() {
	for _, sn := range s.snippets {
		p := &sdk.Prompt{Name: sn.name, Description: sn.Description}
		for _, name := range slices.Sorted(maps.Keys(sn.Arguments)) {
			p.Arguments = append(p.Arguments, &sdk.PromptArgument{Name: name, Description: sn.Arguments[name].Description,
				Required: sn.Arguments[name].Required})
		}
		s.sdk.AddPrompt(p, sn.prompt)
	}
}

// prompt asks the model to run the snippet.
func (s *snippet) prompt(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
	if missing := s.missing(req.Params.Arguments); len(missing) > 0 {
		return nil, fmt.Errorf("prompt %s needs the argument %s", s.name, strings.Join(missing, ", "))
	}
	call, err := json.Marshal(runArgs{Snippet: s.name, Env: req.Params.Arguments})
	if err != nil {
		return nil, err
	}
	return &sdk.GetPromptResult{Description: s.Description,
		Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{
			Text: fmt.Sprintf("Call the tool run_code with %s. It runs this:\n\n```%s\n%s\n```", call,
				strings.TrimPrefix(filepath.Ext(s.file), "."), s.code)}}}}, nil
}
