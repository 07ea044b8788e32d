package main

import (
	"bytes"
	"crypto/sha1"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra/doc"

	"github.com/unitask/unitask/cli"
	"github.com/unitask/unitask/internal/selfupdate"
)

// shells are the shells with completions, with the file names that their packages install.
var shells = map[string]string{"bash": "unitask.bash", "zsh": "_unitask", "fish": "unitask.fish"}

// skill is our Agent Skill, which tells a model when to use which tool; skillPlace is its place in a package.
const skill, skillPlace = "cli/skills/unitask/SKILL.md", "skills/unitask/SKILL.md"

// extras writes completions, manual pages and our skill into a folder, and returns their names.
func extras(version, dir string) (files []string, err error) {
	text, err := os.ReadFile(skill)
	if err == nil {
		err = write(filepath.Join(dir, skillPlace), text)
	}
	if err != nil {
		return nil, err
	}
	for shell, name := range shells {
		var text bytes.Buffer
		if code := cli.Main([]string{"completion", shell},
			cli.Streams{Stdin: strings.NewReader(""), Stdout: &text, Stderr: os.Stderr}); code != 0 {
			return nil, fmt.Errorf("completion %s: exit code %d", shell, code)
		}
		if err := write(filepath.Join(dir, "completions", name), text.Bytes()); err != nil {
			return nil, err
		}
	}
	man := filepath.Join(dir, "man")
	if err := os.MkdirAll(man, 0o755); err != nil {
		return nil, err
	}
	root := cli.Command()
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Title: "UNITASK", Section: "1", Date: &whenBuilt,
		Source: "unitask " + version, Manual: "unitask"}, man); err != nil {
		return nil, err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Base(path) != "unitask" {
			files = append(files, path)
		}
		return err
	})
	slices.Sort(files)
	return files, err
}

func write(name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

// component is one of CycloneDX 1.5 (cyclonedx.org/docs/1.5/json).
type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
	Ref     string `json:"bom-ref"`
}

// bom returns the bill of materials of a program: the modules that the Go tool has recorded in it, and the Go release.
func bom(program, version string) (any, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	modules := slices.Clone(info.Deps)
	slices.SortFunc(modules, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	golang := "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")
	components := []component{{"library", "std", info.GoVersion, golang, golang}}
	refs := []string{golang}
	for _, m := range modules {
		if m.Replace != nil {
			m = m.Replace
		}
		purl := "pkg:golang/" + m.Path + "@" + m.Version
		components = append(components, component{"library", m.Path, m.Version, purl, purl})
		refs = append(refs, purl)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	id := sha1.Sum(text) // as in RFC 9562's version 5: the same program gets the same id
	id[6], id[8] = id[6]&0x0f|0x50, id[8]&0x3f|0x80
	self := "pkg:golang/" + info.Main.Path + "@v" + version
	return map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"serialNumber": fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16]),
		"metadata": map[string]any{"timestamp": whenBuilt.Format("2006-01-02T15:04:05Z"),
			"component": component{"application", "unitask", version, self, self}},
		"components":   components,
		"dependencies": []any{map[string]any{"ref": self, "dependsOn": refs}},
	}, nil
}

// sums writes the digests of the files in a folder, in the format of sha256sum.
func sums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, e := range entries {
		if e.IsDir() || e.Name() == selfupdate.SumsFile || e.Name() == selfupdate.SignatureFile {
			continue
		}
		sum, err := digest(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, e.Name())
	}
	return os.WriteFile(filepath.Join(dir, selfupdate.SumsFile), []byte(text.String()), 0o644)
}
