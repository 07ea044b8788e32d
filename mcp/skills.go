package mcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/skill"
)

// Limits on a folder of skills. Files that are not text, or over maxSnippet, are not offered.
const (
	maxSkills     = 100
	maxSkillBytes = 16 << 20 // of all files that are kept
)

// skillsURI is the begin of the URIs of skills' files.
const skillsURI = "unitask://skills/"

// offered is a skill as it was at the server's start. What is kept is what runs.
type offered struct {
	*skill.Skill
	texts map[string]string // its files by path
}

// readSkills reads the skills of a folder; "" means none.
func readSkills(dir string) (map[string]*offered, error) {
	found, size := map[string]*offered{}, 0
	if dir == "" {
		return found, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("skills: %w", err)
	}
	for _, e := range entries {
		from := filepath.Join(dir, e.Name())
		if _, err := os.Lstat(filepath.Join(from, skill.File)); err != nil {
			continue // no skill
		}
		o, err := readOffered(from, maxSkillBytes-size)
		if err != nil {
			return nil, fmt.Errorf("skill %s: %w", from, err)
		}
		if found[o.Name] != nil {
			return nil, fmt.Errorf("skill %s: %s has the same name", from, found[o.Name].Source)
		}
		for _, text := range o.texts {
			size += len(text)
		}
		if found[o.Name] = o; len(found) > maxSkills {
			return nil, fmt.Errorf("skills: %s has more than %d", dir, maxSkills)
		}
	}
	return found, nil
}

// readOffered reads one skill, and at most that many bytes of texts. It copies the skill first, so that digests and
// texts belong together.
func readOffered(from string, most int) (*offered, error) {
	tmp, err := os.MkdirTemp("", "unitask-skill-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	s, err := skill.Read(from, tmp)
	if err != nil {
		return nil, err
	}
	o := &offered{Skill: s, texts: map[string]string{}}
	for name := range s.Files {
		at := filepath.Join(tmp, filepath.FromSlash(name))
		if st, err := os.Stat(at); err != nil || st.Size() > maxSnippet {
			continue
		}
		text, err := os.ReadFile(at)
		if err != nil {
			return nil, err
		}
		if !utf8.Valid(text) {
			continue
		}
		if most -= len(text); most < 0 {
			return nil, fmt.Errorf("the skills' texts have more than %d MiB", maxSkillBytes>>20)
		}
		o.texts[name] = string(text)
	}
	return o, nil
}

// addSkills offers each skill as a prompt, its files as resources and its scripts as snippets.
func (s *Server) addSkills() {
	if len(s.skills) == 0 {
		return
	}
	s.sdk.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: skillsURI + "{name}/{+path}", Name: "skill",
		Title: "A skill's file", Description: "A text file of an Agent Skill of this server."}, s.readSkill)
	for _, o := range s.skills {
		s.sdk.AddPrompt(&sdk.Prompt{Name: o.Name, Title: "Skill " + o.Name, Description: o.Description}, o.prompt)
		s.sdk.AddResource(&sdk.Resource{URI: o.uri(skill.File), Name: o.Name, Title: "Skill " + o.Name,
			MIMEType: "text/markdown", Description: o.Description}, s.readSkill)
	}
}

// uri returns the URI of a file of the skill.
func (o *offered) uri(name string) string {
	return skillsURI + o.Name + "/" + (&url.URL{Path: name}).EscapedPath()
}

// snippetOf returns the name by which run_code runs a script.
func (o *offered) snippetOf(script string) string { return o.Name + "/" + script }

// prompt gives the model the skill's text, and says how it runs the scripts.
func (o *offered) prompt(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
	text := o.texts[skill.File]
	for _, script := range o.Scripts() {
		text += fmt.Sprintf("\n\nTo run %s, call the tool run_code with the snippet %q, and with args.", script,
			o.snippetOf(script))
	}
	text += "\n\nThe skill's files are the resources " + skillsURI + o.Name + "/PATH."
	return &sdk.GetPromptResult{Description: o.Description,
		Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: text}}}}, nil
}

// readSkill answers a read of a skill's file.
func (s *Server) readSkill(_ context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	name, file, _ := strings.Cut(strings.TrimPrefix(req.Params.URI, skillsURI), "/")
	file, err := url.PathUnescape(file)
	o := s.skills[name]
	if err != nil || o == nil {
		return nil, sdk.ResourceNotFoundError(req.Params.URI)
	}
	text, is := o.texts[file]
	if !is {
		return nil, sdk.ResourceNotFoundError(req.Params.URI)
	}
	kind := "text/plain"
	if path.Ext(file) == ".md" {
		kind = "text/markdown"
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: req.Params.URI, MIMEType: kind,
		Text: text}}}, nil
}

// script makes a request of a skill's script: its code and the files beside it. The request has the network that the
// metadata names if the user trusts the skill. script reports whether the snippet names a script.
func (s *Server) script(in runArgs, req *unitask.Request) (is bool, err error) {
	name, script, _ := strings.Cut(in.Snippet, "/")
	o := s.skills[name]
	if o == nil || !slices.Contains(o.Scripts(), script) {
		return false, nil
	}
	code, kept := o.texts[script]
	switch {
	case !kept:
		return true, fmt.Errorf("snippet %q: it is no text, or has more than %d bytes", in.Snippet, maxSnippet)
	case in.Filename != "" || in.Session != "":
		return true, fmt.Errorf("snippet %q: leave out filename and session: a skill's script has a machine of its own",
			in.Snippet)
	case len(in.AllowNet)+len(in.AllowHTTP)+len(in.AllowTCP)+len(in.Packages)+len(in.Tools) > 0:
		return true, fmt.Errorf("snippet %q: leave out allowNet, allowHttp, allowTcp, packages and tools: "+
			"the skill's metadata says what it needs", in.Snippet)
	}
	req.Code, req.Path, req.Language = code, path.Base(script), ""
	for _, file := range slices.Sorted(maps.Keys(o.texts)) {
		beside, in := strings.CutPrefix(file, path.Dir(script)+"/")
		if _, taken := o.texts[path.Join(path.Dir(script), file)]; file == script || !in && taken {
			continue
		}
		req.InlineFiles = append(req.InlineFiles, unitask.InlineFile{Name: beside, Content: o.texts[file]})
	}
	trusted, err := s.trusts(o)
	if trusted {
		req.AllowNet, req.Packages = o.Hosts, o.Packages
	}
	return true, err
}

// trusts reports whether the user trusts a skill as it was at the start.
func (s *Server) trusts(o *offered) (bool, error) {
	dir := home.Dir(s.rt.Images().Home())
	was, err := skill.Trust{Path: dir.Skills(), Lock: dir.Lock("skills")}.Of(o.Source)
	if err != nil || was == nil {
		return false, err
	}
	if len(was.Changed(o.Files)) > 0 {
		return false, errors.New("the skill is another than the one that its user trusts: " +
			"unitask skill trust, and a new start of this server, are needed")
	}
	return true, nil
}
