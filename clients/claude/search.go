package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	maxPaths   = 200     // that glob returns
	maxListing = 8 << 20 // bytes of a list of files
)

// glob lists files whose path fits a pattern, the newest first.
func glob(ctx context.Context, m *machine, input json.RawMessage) (string, error) {
	var in struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return "", err
	}
	if in.Pattern == "" || path.IsAbs(in.Pattern) || slices.Contains(strings.Split(in.Pattern, "/"), "..") {
		return "", fmt.Errorf("pattern %.200q: use a relative one without .., and path for the folder", in.Pattern)
	}
	if _, err := path.Match(in.Pattern, ""); err != nil {
		return "", fmt.Errorf("pattern %.200q: %w", in.Pattern, err)
	}
	root, err := m.at(cmp.Or(in.Path, "."))
	if err != nil {
		return "", err
	}
	out, code, err := m.output(ctx, maxListing, "find", root, "-mindepth", "1", "-printf", `%T@ %P\0`)
	switch {
	case errors.Is(err, errCut):
		return "", fmt.Errorf("%s has too many files: name a folder with path", root)
	case err != nil:
		return "", err
	case code != 0 && !strings.Contains(out, "\x00"):
		return "", errors.New(strings.TrimSpace(out))
	}
	return matches(root, in.Pattern, out), nil
}

// matches returns the paths of a list of find's that fit the pattern.
func matches(root, pattern, list string) string {
	type file struct{ time, name string }
	var files []file
	want := strings.Split(pattern, "/")
	for entry := range strings.SplitSeq(list, "\x00") {
		time, name, _ := strings.Cut(entry, " ")
		if name != "" && fits(want, strings.Split(name, "/")) {
			files = append(files, file{time, name})
		}
	}
	if len(files) == 0 {
		return "no matches"
	}
	slices.SortStableFunc(files, func(a, b file) int {
		return cmp.Or(cmp.Compare(len(b.time), len(a.time)), cmp.Compare(b.time, a.time)) // both have as many decimals
	})
	var text []string
	for _, f := range files[:min(len(files), maxPaths)] {
		text = append(text, path.Join(root, f.name))
	}
	if len(files) > maxPaths {
		text = append(text, fmt.Sprintf("[%d more]", len(files)-maxPaths))
	}
	return strings.Join(text, "\n")
}

// fits reports whether the parts of a path fit those of a pattern; ** stands for any number of parts. It keeps a row of
// the table of all prefixes, so that no pattern takes long.
func fits(pattern, name []string) bool {
	row := make([]bool, len(name)+1) // row[n]: the pattern so far fits the first n parts
	row[0] = true
	for _, part := range pattern {
		next := make([]bool, len(name)+1)
		for n := range next {
			switch {
			case part == "**":
				next[n] = row[n] || n > 0 && next[n-1]
			case n > 0 && row[n-1]:
				next[n], _ = path.Match(part, name[n-1])
			}
		}
		row = next
	}
	return row[len(name)]
}

// grep searches files for a regular expression.
func grep(ctx context.Context, m *machine, input json.RawMessage) (string, error) {
	var in struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return "", err
	}
	if in.Pattern == "" {
		return "", errors.New("pattern is missing")
	}
	root, err := m.at(cmp.Or(in.Path, "."))
	if err != nil {
		return "", err
	}
	out, code, err := m.output(ctx, maxOutput, "grep", "-rnIPH", "--exclude-dir=.git", "--exclude-dir=node_modules",
		"-e", in.Pattern, "--", root)
	switch {
	case errors.Is(err, errCut):
		return out + "\n[there were more: the first ones are left out]", nil
	case err != nil:
		return "", err
	case code == 1 && out == "":
		return "no matches", nil
	case code > 1 && !strings.Contains(out, root):
		return "", errors.New(strings.TrimSpace(out))
	}
	return strings.TrimSuffix(out, "\n"), nil
}
