// Command dist builds the files of a release. For each system it builds an archive of the program with completions and
// manual pages. For MCP clients it builds bundles (.mcpb). It writes bills of materials (CycloneDX), and builds
// packages: a wheel for PyPI, packages for npm, a deb and an rpm. Then it writes server.json for the MCP registry, and
// SHA256SUMS. The same commit and Go release give the same bytes. With -parts it first builds a bundle of the guest's
// parts for each architecture, and packages of it. image/bundles.lock puts their digests into the programs. Those for
// npm and PyPI hold a QEMU, too, with -qemu.
//
//	go run ./hack/dist -version 1.2.3 [-o dist] [-only linux/amd64] [-parts] [-qemu DIR] [-sign FILE | -key KEY]
//	go run ./hack/dist -version 1.2.3 -install /usr/local
//
// Formats: MCPB's MANIFEST.md 0.3 (github.com/modelcontextprotocol/mcpb) and server.json 2025-12-11
// (github.com/modelcontextprotocol/registry).
package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

// systems are the systems of a release.
var systems = []struct{ os, arch string }{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "arm64"}}

const (
	repository  = "https://github.com/unitask/unitask"
	description = "Runs untrusted code in a fresh, one-shot virtual machine"
)

func main() {
	version := flag.String("version", "", "the release's version: 1.2.3")
	out := flag.String("o", "dist", "folder for what is built")
	only := flag.String("only", "", "only this system: linux/amd64, say")
	withParts := flag.Bool("parts", false,
		"the bundles of parts too; fetches what the store lacks, and writes image/bundles.lock")
	qemu := flag.String("qemu", "",
		"folder with a QEMU for each architecture, as hack/qemu builds it: for the packages of parts")
	public := flag.String("key", "", "minisign public key for the programs of a release that is signed elsewhere")
	key := flag.String("sign", "",
		"file with a minisign secret key: signs SHA256SUMS, and puts the public key into the programs")
	prefix := flag.String("install", "", "install this system's program below this folder instead: /usr/local")
	flag.Parse()
	by, err := openKey(*key, *public)
	if err == nil && *prefix == "" && *withParts {
		err = parts(*version, *out, *only)
	}
	switch {
	case err != nil:
	case *prefix != "":
		err = install(*version, os.Getenv("DESTDIR"), *prefix)
	default:
		err = dist(*version, *out, *only, *qemu, by)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// bundlesLock is the file that gives programs the digests of their release's bundles.
const bundlesLock = "image/bundles.lock"

// parts writes the bundles of parts, and their digests to bundlesLock.
func parts(version, out, only string) error {
	if err := check(version); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	lock := "# The bundles of parts that belong to release " + version +
		" (hack/dist writes this before it builds the\n# programs): for hosts without apt.\n"
	done := map[string]bool{}
	for _, s := range systems {
		if done[s.arch] || (only != "" && only != s.os+"/"+s.arch) {
			continue
		}
		done[s.arch] = true
		name := partsFile(version, s.arch)
		cmd := exec.Command("go", "run", "./cli/unitask", "image", "vendor", "--arch", s.arch, "--to",
			filepath.Join(out, name))
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("bundle for %s: %w", s.arch, err)
		}
		sum, err := digest(filepath.Join(out, name))
		if err != nil {
			return err
		}
		lock += fmt.Sprintf("\n[[bundle]]\narch = %q\nurl = %q\ndigest = %q\n", s.arch,
			repository+"/releases/download/v"+version+"/"+name, "sha256-"+sum)
		fmt.Println(filepath.Join(out, name), sum)
	}
	return os.WriteFile(bundlesLock, []byte(lock), 0o644)
}

// partsFile is the name of a release's bundle of parts.
func partsFile(version, arch string) string {
	return fmt.Sprintf("unitask_%s_parts_%s.tar.zst", version, arch)
}

func check(version string) error {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?$`).MatchString(version) {
		return fmt.Errorf("version %q: use 1.2.3", version)
	}
	return nil
}

// made is what a release's index files name.
type made struct {
	by        publisher
	packages  []any    // of the MCP registry's entry
	platforms []string // npm packages with the program
}

func dist(version, out, only, qemu string, by publisher) error {
	if err := check(version); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	all := made{by: by}
	for _, s := range systems {
		if only != "" && only != s.os+"/"+s.arch {
			continue
		}
		if err := all.system(version, s.os, s.arch, out, qemu); err != nil {
			return fmt.Errorf("%s/%s: %w", s.os, s.arch, err)
		}
	}
	if err := npmClient(version, out, all.platforms); err != nil {
		return err
	}
	python, err := pythonVersion(version)
	if err != nil {
		return err
	}
	err = writeJSON(filepath.Join(out, "server.json"), map[string]any{
		"$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
		"name":    registryName, "title": "unitask", "description": description, "version": version,
		"repository": map[string]string{"url": repository, "source": "github"},
		"packages":   append(all.packages, registryPackage("npm", version, "npx"), registryPackage("pypi", python, "uvx")),
	})
	return cmp.Or(err, sums(out), by.sign(version, out))
}

// registryName is the server's name in the MCP registry. The registry looks for it in the packages.
const registryName = "io.github.unitask/unitask"

// registryPackage returns a package of npm or PyPI as server.json has it.
func registryPackage(registry, version, runner string) map[string]any {
	return map[string]any{"registryType": registry, "identifier": "unitask", "version": version, "runtimeHint": runner,
		"packageArguments": []any{map[string]string{"type": "positional", "value": "mcp"}},
		"transport":        map[string]string{"type": "stdio"}}
}

// sameBytes makes go build's output independent of the folder of the source.
const sameBytes = "-trimpath"

// build builds the program of a system, which says that it is of this version. More flags of go build may follow.
func build(program, version, system, arch string, by publisher, more ...string) error {
	flags := "-ldflags=-s -w -X github.com/unitask/unitask/cli.released=v" + version + by.flags()
	cmd := exec.Command("go", append(append([]string{"build"}, more...), flags, "-o", program, "./cli/unitask")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+system, "GOARCH="+arch)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}

// system builds the files of one system.
func (all *made) system(version, system, arch, out, qemu string) error {
	name := fmt.Sprintf("unitask_%s_%s_%s", version, system, arch)
	program := filepath.Join(out, name, "unitask")
	if err := build(program, version, system, arch, all.by, sameBytes); err != nil {
		return err
	}
	files, err := extras(version, filepath.Dir(program))
	if err != nil {
		return err
	}
	if err := archive(filepath.Join(out, name+".tar.gz"),
		append([]string{program, "LICENSE", "README.md"}, files...)...); err != nil {
		return err
	}
	bill, err := bom(program, version)
	if err == nil {
		err = writeJSON(filepath.Join(out, name+".cdx.json"), bill)
	}
	if err != nil {
		return err
	}
	bundle := filepath.Join(out, name+".mcpb")
	if err := pack(bundle, manifest(version, system), program); err != nil {
		return err
	}
	sum, err := digest(bundle)
	if err != nil {
		return err
	}
	all.packages = append(all.packages, map[string]any{"registryType": "mcpb",
		"identifier": repository + "/releases/download/v" + version + "/" + filepath.Base(bundle),
		"fileSha256": sum, "transport": map[string]string{"type": "stdio"}})
	fmt.Println(bundle, sum)
	if _, err := wheel(version, system+"/"+arch, program, out); err != nil {
		return err
	}
	npm, err := npmPlatform(version, system+"/"+arch, program, out)
	if err != nil {
		return err
	}
	all.platforms = append(all.platforms, npm)
	if system != "linux" {
		return nil
	}
	return errors.Join(linuxPackages(version, arch, program, out), partsPackages(version, arch, out, qemu))
}

// manifest returns a bundle's manifest.
func manifest(version, system string) map[string]any {
	return map[string]any{
		"manifest_version": "0.3", "name": "unitask", "display_name": "unitask", "version": version,
		"description": description,
		"author":      map[string]string{"name": "The unitask authors", "url": repository}, "license": "MIT",
		"repository": map[string]string{"type": "git", "url": repository},
		"server": map[string]any{"type": "binary", "entry_point": "server/unitask", "mcp_config": map[string]any{
			"command": "${__dirname}/server/unitask", "args": []string{"mcp", "--dir", "${user_config.folder}"},
		}},
		"tools": []map[string]string{
			{"name": "run_code", "description": "Run code in a fresh virtual machine"},
			{"name": "inspect_run", "description": "Show the record of a run"},
			{"name": "list_runs", "description": "List earlier runs"},
			{"name": "unitask_doctor", "description": "Check the installation"},
		},
		"user_config": map[string]any{"folder": map[string]any{"type": "directory", "title": "Folder", "required": true,
			"default":     "${HOME}/Documents",
			"description": "The folder whose files code may be given, and whose .unitask.toml bounds what it gets"}},
		"compatibility": map[string]any{"platforms": []string{system}},
	}
}

// whenBuilt is the time of every file, so that the same source gives the same bytes.
var whenBuilt = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// pack writes a bundle.
func pack(name string, manifest map[string]any, program string) error {
	text, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	return zipped(name, []packed{{name: "manifest.json", text: append(text, '\n')},
		{name: "server/unitask", from: program, mode: 0o755}})
}

// archive writes files, the first of them executable, into a .tar.gz.
func archive(name string, files ...string) error {
	var list []packed
	for i, file := range files {
		p := packed{name: "unitask/" + filepath.Base(file), from: file}
		if i == 0 {
			p.mode = 0o755
		}
		if rel, err := filepath.Rel(filepath.Dir(files[0]), file); err == nil && filepath.IsLocal(rel) { // beside the program
			p.name = "unitask/" + filepath.ToSlash(rel)
		}
		list = append(list, p)
	}
	return tarball(name, list)
}

func copyFrom(w io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func digest(name string) (string, error) {
	hash := sha256.New()
	if err := copyFrom(hash, name); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func writeJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}
