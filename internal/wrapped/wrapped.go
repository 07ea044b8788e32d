// Package wrapped translates the command of an MCP client's configuration into one of a machine.
package wrapped

import (
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/unitask/unitask/policy"
)

// These start the program of an installed package as npx and uvx do, in the same process.
var (
	//go:embed npx.js
	npxStart string
	//go:embed uvx.py
	uvxStart string
)

// Server is how a server starts in a machine.
type Server struct {
	Image    string
	Packages []string // as --with has them
	Args     []string
}

// Translate returns how the command of a client's configuration starts in a machine of ours.
func Translate(args []string) (Server, error) {
	name, rest := path.Base(args[0]), args[1:]
	switch {
	case name == "npx" || name == "bunx":
		return translateNpx(name, rest)
	case name == "uvx":
		return translateUvx(name, rest)
	case name == "pipx" && len(rest) > 0 && rest[0] == "run":
		return translateUvx("pipx run", rest[1:])
	case name == "node":
		return Server{Image: "node", Args: append([]string{"node"}, rest...)}, nil
	case name == "python" || name == "python3":
		return Server{Image: "python", Args: append([]string{"python3"}, rest...)}, nil
	case name == "docker" || name == "podman":
		return Server{}, fmt.Errorf("%s: a machine has no containers: --image IMAGE -- COMMAND runs a command of an image",
			name)
	}
	return Server{Image: "shell", Args: args}, nil
}

// Options of npx and uvx, with what they mean to us.
const (
	optionIgnored = iota + 1
	optionPackage // a further package, or the one that has the program
)

// options reads the options in front of a program's name.
func options(tool string, args []string, known map[string]int) (packages, rest []string, err error) {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		option, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if option == "--" {
			break
		}
		switch known[option] {
		case optionIgnored:
		case optionPackage:
			if !joined {
				if len(args) == 0 {
					return nil, nil, fmt.Errorf("%s %s: a package must follow", tool, option)
				}
				value, args = args[0], args[1:]
			}
			packages = append(packages, value)
		default:
			return nil, nil, fmt.Errorf("%s %s: unitask knows no such option of %s: it knows -y and the packages'",
				tool, option, tool)
		}
	}
	if len(args) == 0 {
		return nil, nil, fmt.Errorf("%s: a package must follow", tool)
	}
	return packages, args, nil
}

func translateNpx(tool string, args []string) (w Server, err error) {
	packages, rest, err := options(tool, args, map[string]int{"-y": optionIgnored, "--yes": optionIgnored,
		"-q": optionIgnored, "--quiet": optionIgnored, "--bun": optionIgnored, "-p": optionPackage,
		"--package": optionPackage})
	if err != nil {
		return w, err
	}
	program := rest[0]
	if len(packages) == 0 {
		packages, program = []string{rest[0]}, ""
	}
	for _, p := range packages {
		rule, err := policy.ParsePackage("npm:" + strings.TrimSuffix(p, "@latest"))
		if err != nil {
			return w, fmt.Errorf("%s %.80q: %w", tool, p, err)
		}
		w.Packages = append(w.Packages, string(rule))
	}
	first := strings.TrimPrefix(w.Packages[0], "npm:")
	if at := strings.LastIndexByte(first, '@'); at > 0 {
		first = first[:at]
	}
	w.Image = "node"
	w.Args = slices.Concat([]string{"node", "-e", npxStart, "--", first, program}, rest[1:])
	return w, nil
}

func translateUvx(tool string, args []string) (w Server, err error) {
	packages, rest, err := options(tool, args, map[string]int{"-q": optionIgnored, "--quiet": optionIgnored,
		"--from": optionPackage, "--spec": optionPackage, "--with": optionPackage})
	if err != nil {
		return w, err
	}
	program := rest[0]
	if !slices.ContainsFunc(args[:len(args)-len(rest)], func(option string) bool {
		return strings.HasPrefix(option, "--from") || strings.HasPrefix(option, "--spec")
	}) { // the program has its package's name
		name, version, _ := strings.Cut(rest[0], "@")
		spec := name
		if version != "" && version != "latest" {
			spec += "==" + version
		}
		packages = append([]string{spec}, packages...)
		program = name[:strings.IndexAny(name+"[", "[=<>~!")]
	}
	for _, p := range packages {
		rule, err := policy.ParsePackage("pip:" + p)
		if err != nil {
			return w, fmt.Errorf("%s %.80q: %w", tool, p, err)
		}
		w.Packages = append(w.Packages, string(rule))
	}
	w.Image = "python"
	w.Args = slices.Concat([]string{"python3", "-c", uvxStart, program}, rest[1:])
	return w, nil
}
