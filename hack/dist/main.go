// Command dist builds the files of a release. For each system it builds an archive of the program with completions and
// manual pages. It also builds a bundle (.mcpb) for MCP clients, and a bill of materials (CycloneDX). Then it writes
// server.json for the MCP registry, and SHA256SUMS. The same commit and Go release give the same bytes. With -parts it
// first builds a bundle of the guest's parts for each architecture. image/bundles.lock puts their digests into the
// programs.
//
//	go run ./hack/dist -version 1.2.3 [-o dist] [-only linux/amd64] [-parts]
//
// Formats: MCPB's MANIFEST.md 0.3 (github.com/modelcontextprotocol/mcpb) and server.json 2025-12-11
// (github.com/modelcontextprotocol/registry).
package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
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
	flag.Parse()
	err := error(nil)
	if *withParts {
		err = parts(*version, *out, *only)
	}
	if err == nil {
		err = dist(*version, *out, *only)
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
		name := fmt.Sprintf("unitask_%s_parts_%s.tar.zst", version, s.arch)
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

func check(version string) error {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?$`).MatchString(version) {
		return fmt.Errorf("version %q: use 1.2.3", version)
	}
	return nil
}

func dist(version, out, only string) error {
	if err := check(version); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var packages []any
	for _, s := range systems {
		if only != "" && only != s.os+"/"+s.arch {
			continue
		}
		name := fmt.Sprintf("unitask_%s_%s_%s", version, s.os, s.arch)
		program := filepath.Join(out, name, "unitask")
		cmd := exec.Command("go", "build", "-trimpath", "-o", program, "./cli/unitask")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+s.os, "GOARCH="+s.arch)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		files, err := extras(version, filepath.Dir(program))
		if err != nil {
			return err
		}
		if err := archive(filepath.Join(out, name+".tar.gz"),
			append([]string{program, "LICENSE", "README.md"}, files...)...); err != nil {
			return err
		}
		parts, err := bom(program, version)
		if err == nil {
			err = writeJSON(filepath.Join(out, name+".cdx.json"), parts)
		}
		if err != nil {
			return err
		}
		bundle := filepath.Join(out, name+".mcpb")
		if err := pack(bundle, manifest(version, s.os), program); err != nil {
			return err
		}
		sum, err := digest(bundle)
		if err != nil {
			return err
		}
		packages = append(packages, map[string]any{"registryType": "mcpb",
			"identifier": repository + "/releases/download/v" + version + "/" + filepath.Base(bundle),
			"fileSha256": sum, "transport": map[string]string{"type": "stdio"}})
		fmt.Println(bundle, sum)
	}
	err := writeJSON(filepath.Join(out, "server.json"), map[string]any{
		"$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
		"name":    "io.github.unitask/unitask", "title": "unitask", "description": description, "version": version,
		"repository": map[string]string{"url": repository, "source": "github"}, "packages": packages,
	})
	return errors.Join(err, sums(out))
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
func pack(name string, manifest map[string]any, program string) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z := zip.NewWriter(f)
	text, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	w, err := z.CreateHeader(&zip.FileHeader{Name: "manifest.json", Method: zip.Deflate, Modified: whenBuilt})
	if err != nil {
		return err
	}
	if _, err := w.Write(append(text, '\n')); err != nil {
		return err
	}
	h := &zip.FileHeader{Name: "server/unitask", Method: zip.Deflate, Modified: whenBuilt}
	h.SetMode(0o755)
	if w, err = z.CreateHeader(h); err != nil {
		return err
	}
	if err := copyFrom(w, program); err != nil {
		return err
	}
	return z.Close()
}

// archive writes files, the first of them executable, into a .tar.gz.
func archive(name string, files ...string) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zip := gzip.NewWriter(f)
	t := tar.NewWriter(zip)
	for i, file := range files {
		st, err := os.Stat(file)
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if i == 0 {
			mode = 0o755
		}
		inside := filepath.Base(file)
		if rel, err := filepath.Rel(filepath.Dir(files[0]), file); err == nil && filepath.IsLocal(rel) { // beside the program
			inside = filepath.ToSlash(rel)
		}
		if err := t.WriteHeader(&tar.Header{Name: "unitask/" + inside, Mode: mode, Size: st.Size(),
			ModTime: whenBuilt}); err != nil {
			return err
		}
		if err := copyFrom(t, file); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), zip.Close())
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
