package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/tailscale/hujson"
	"go.yaml.in/yaml/v3"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/regular"
)

// Config is a client's configuration for unitask.
type Config struct {
	Client  string // its name, without an alias
	File    string // its path
	Snippet string // its text, as a separate file
	project string // the project that it belongs to, with files of a repository; "" for the home's
	client  client
	entry   map[string]any
}

// serverName is unitask's name in clients' configuration.
const serverName = "unitask"

// ClientConfig returns the configuration of a client, by its name or an alias. The client starts command with args, and
// with env in addition to its own environment.
func ClientConfig(name, home, project, command string, args []string, env map[string]string) (*Config, error) {
	if as, ok := aliases[name]; ok {
		name = as
	}
	c, ok := clients[name]
	if !ok {
		return nil, fmt.Errorf("client %q: use %s", name, strings.Join(Clients(), ", "))
	}
	cfg := &Config{Client: name, File: c.file(home, project), client: c, entry: c.entry(command, args, env)}
	if c.file(home, "") != cfg.File {
		cfg.project = project
	}
	whole := map[string]any{c.key: map[string]any{serverName: cfg.entry}}
	switch c.format {
	case inYAML:
		text, err := yaml.Marshal(whole)
		cfg.Snippet = string(text)
		return cfg, err
	case inTOML:
		var b strings.Builder
		enc := toml.NewEncoder(&b)
		enc.Indent = ""
		if err := enc.Encode(whole); err != nil {
			return nil, err
		}
		cfg.Snippet = strings.TrimPrefix(b.String(), "["+c.key+"]\n")
		return cfg, nil
	}
	text, err := json.MarshalIndent(whole, "", "  ")
	cfg.Snippet = string(text) + "\n"
	return cfg, err
}

// Write adds the server to the client's file, and leaves everything else in it unchanged, comments too. The
// previous file is kept in backup, "" if there was none.
func (c *Config) Write() (backup string, err error) {
	real, err := c.real()
	if err != nil {
		return "", err
	}
	old, err := regular.Read(real, maxClientFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	mode := fs.FileMode(0o644)
	if st, err := os.Stat(c.File); err == nil {
		mode = st.Mode().Perm()
	}
	merged, err := c.merge(old)
	if err != nil {
		return "", fmt.Errorf("%s: %w: it was left as it is", c.File, err)
	}
	if string(merged) == string(old) {
		return "", nil
	}
	if err := os.MkdirAll(filepath.Dir(c.File), 0o755); err != nil {
		return "", err
	}
	if old != nil {
		backup = c.File + ".bak"
		if err := atomicfile.Write(backup, old, mode); err != nil { // follows no link
			return "", err
		}
	}
	return backup, atomicfile.Write(real, merged, mode)
}

// maxClientFile bounds a client's file.
const maxClientFile = 16 << 20

// real returns the file's path without links, so that a link (into a dotfiles folder, say) stays a link. A stranger may
// have made the links of a project: their targets must be inside the project.
func (c *Config) real() (string, error) {
	real := c.File
	if to, err := filepath.EvalSymlinks(c.File); err == nil {
		real = to
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(c.File)); err == nil {
		real = filepath.Join(dir, filepath.Base(c.File))
	} else {
		return real, nil // its folder is made
	}
	if c.project == "" {
		return real, nil
	}
	top, err := filepath.EvalSymlinks(c.project)
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(top, real); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%s leads out of the project, to %s: remove the link", c.File, real)
	}
	return real, nil
}

func (c *Config) merge(old []byte) ([]byte, error) {
	if strings.TrimSpace(string(old)) == "" {
		return []byte(c.Snippet), nil
	}
	switch c.client.format {
	case inTOML:
		return c.mergeTOML(old)
	case inYAML:
		return c.mergeYAML(old)
	}
	doc, err := hujson.Parse(old)
	if err != nil {
		return nil, err
	}
	entry, err := json.MarshalIndent(c.entry, "    ", "  ")
	if err != nil {
		return nil, err
	}
	at := "/" + c.client.key
	if now := doc.Find(at + "/" + serverName); now != nil && same(now.Pack(), entry) {
		return old, nil
	}
	patch := fmt.Sprintf(`{"op":"add","path":"%s/%s","value":%s}`, at, serverName, entry)
	if doc.Find(at) == nil {
		patch = fmt.Sprintf(`{"op":"add","path":"%s","value":{}},`, at) + patch
	}
	if err := doc.Patch([]byte("[" + patch + "]")); err != nil {
		return nil, err
	}
	// On separate lines; the rest of the file keeps its format.
	indent(&doc, c.client.key, "\n  ")
	indent(doc.Find(at), serverName, "\n    ")
	return doc.Pack(), nil
}

// same reports whether two JSON texts have the same meaning.
func same(a, b []byte) bool {
	a, err := hujson.Minimize(a)
	if err != nil {
		return false
	}
	b, err = hujson.Minimize(b)
	return err == nil && string(a) == string(b)
}

// indent puts a member without anything before it on its own line.
func indent(v *hujson.Value, name, before string) {
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		return
	}
	for i := range object.Members {
		m := &object.Members[i]
		if literal, ok := m.Name.Value.(hujson.Literal); !ok || literal.String() != name || len(m.Name.BeforeExtra) > 0 {
			continue
		}
		m.Name.BeforeExtra, m.Value.BeforeExtra = hujson.Extra(before), hujson.Extra(" ")
		if i == len(object.Members)-1 && len(object.AfterExtra) == 0 {
			object.AfterExtra = hujson.Extra(before[:len(before)-2])
		}
	}
}

// mergeTOML replaces our table, or appends it.
func (c *Config) mergeTOML(old []byte) ([]byte, error) {
	var all map[string]any
	if err := toml.Unmarshal(old, &all); err != nil {
		return nil, err
	}
	table := "[" + c.client.key + "." + serverName
	var out strings.Builder
	ours := false
	for line := range strings.Lines(string(old)) {
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "[") {
			ours = strings.HasPrefix(trimmed, table+"]") || strings.HasPrefix(trimmed, table+".")
		}
		if !ours {
			out.WriteString(line)
		}
	}
	text := strings.TrimRight(out.String(), "\n")
	if text != "" {
		text += "\n\n"
	}
	text += c.Snippet
	var now map[string]any
	if err := toml.Unmarshal([]byte(text), &now); err != nil { // ours in another form than a table
		return nil, fmt.Errorf("it has %s in a form that can't be replaced: put this there:\n%s", serverName, c.Snippet)
	}
	return []byte(text), nil
}

// mergeYAML replaces our entry, or adds it. Comments stay; the file's indentation becomes two spaces.
func (c *Config) mergeYAML(old []byte) ([]byte, error) {
	var doc, second, add yaml.Node
	in := yaml.NewDecoder(bytes.NewReader(old))
	if err := in.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := in.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.Join(errors.New("it has a second document"), err)
	}
	if err := yaml.Unmarshal([]byte(c.Snippet), &add); err != nil {
		return nil, err
	}
	if doc.Kind == 0 { // comments only
		return append(append(bytes.TrimRight(old, "\n"), '\n'), c.Snippet...), nil
	}
	top, ours := doc.Content[0], add.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, errors.New("it is no mapping")
	}
	servers := member(top, c.client.key)
	if servers == nil {
		top.Content = append(top.Content, ours.Content...)
		return writeYAML(&doc)
	}
	entry := member(ours.Content[1], serverName)
	now := member(servers, serverName)
	switch {
	case servers.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("its %s is no mapping", c.client.key)
	case now == nil:
		servers.Content = append(servers.Content, ours.Content[1].Content...)
	case sameYAML(now, entry):
		return old, nil
	default:
		now.Kind, now.Tag, now.Value, now.Alias, now.Content = entry.Kind, entry.Tag, entry.Value, nil, entry.Content
	}
	return writeYAML(&doc)
}

// member returns the value of a mapping's key, or nil.
func member(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func sameYAML(a, b *yaml.Node) bool {
	var x, y any
	return a.Decode(&x) == nil && b.Decode(&y) == nil && reflect.DeepEqual(x, y)
}

func writeYAML(doc *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err := e.Encode(doc)
	return b.Bytes(), errors.Join(err, e.Close())
}
