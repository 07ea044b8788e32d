package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// npmSystems are npm's names (os, cpu) of the systems.
var npmSystems = map[string][2]string{
	"linux/amd64": {"linux", "x64"}, "linux/arm64": {"linux", "arm64"}, "darwin/arm64": {"darwin", "arm64"},
}

const client = "clients/typescript"

// npmPlatform writes the npm package with a system's program. It returns the package's name.
func npmPlatform(version, system, program, out string) (string, error) {
	name := npmSystems[system]
	full := "@unitask/" + name[0] + "-" + name[1]
	manifest, err := packageJSON(map[string]any{"name": full, "version": version, "license": "MIT",
		"description": "The program of unitask for " + name[0] + " on " + name[1],
		"repository":  map[string]string{"type": "git", "url": "git+" + repository + ".git"},
		"os":          name[:1], "cpu": name[1:], "preferUnplugged": true})
	if err != nil {
		return "", err
	}
	file := filepath.Join(out, fmt.Sprintf("unitask-%s-%s-%s.tgz", name[0], name[1], version))
	return full, tarball(file, []packed{{name: "package/package.json", text: manifest},
		{name: "package/LICENSE", from: "LICENSE"}, {name: "package/unitask", from: program, mode: 0o755}})
}

// npmClient writes the npm package unitask: the TypeScript client, and the command that starts the program of the
// platform's package.
func npmClient(version, out string, platforms []string) error {
	dir, err := os.MkdirTemp("", "unitask-dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := buildClient(dir); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(client, "package.json"))
	if err != nil {
		return err
	}
	var manifest map[string]any
	if err := json.Unmarshal(text, &manifest); err != nil {
		return fmt.Errorf("%s/package.json: %w", client, err)
	}
	optional := map[string]string{}
	for _, name := range platforms {
		optional[name] = version
	}
	delete(manifest, "scripts")
	delete(manifest, "devDependencies")
	manifest["version"], manifest["optionalDependencies"], manifest["mcpName"] = version, optional, registryName
	manifest["repository"] = map[string]string{"type": "git", "url": "git+" + repository + ".git", "directory": client}
	if text, err = packageJSON(manifest); err != nil {
		return err
	}
	files, err := under(filepath.Join(dir, "dist", "src"), "package/dist/src/", ".js", ".ts")
	if err != nil {
		return err
	}
	for i, f := range files {
		if f.name == "package/dist/src/bin.js" {
			files[i].mode = 0o755
		}
	}
	return tarball(filepath.Join(out, "unitask-"+version+".tgz"), append([]packed{
		{name: "package/package.json", text: text}, {name: "package/LICENSE", from: "LICENSE"},
		{name: "package/README.md", from: filepath.Join(client, "README.md")},
		{name: "package/" + skillPlace, from: skill}}, files...))
}

// buildClient compiles a copy of the TypeScript client in dir.
func buildClient(dir string) error {
	sources, err := under(filepath.Join(client, "src"), "src/", ".ts")
	if err != nil {
		return err
	}
	for _, name := range []string{"package.json", "tsconfig.json"} {
		sources = append(sources, packed{name: name, from: filepath.Join(client, name)})
	}
	for _, f := range sources {
		text, err := f.bytes()
		if err == nil {
			err = write(filepath.Join(dir, f.name), text)
		}
		if err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"}, {"npx", "tsc"}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, text)
		}
	}
	return nil
}

func packageJSON(v map[string]any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return append(text, '\n'), err
}
