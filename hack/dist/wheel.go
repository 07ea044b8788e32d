package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// wheelTags are the systems that a wheel installs on, by PyPI's names. The program is static: glibc and musl are one.
var wheelTags = map[string]string{
	"linux/amd64":  "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
	"linux/arm64":  "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
	"darwin/arm64": "macosx_11_0_arm64",
}

// wheel writes a wheel: the Python client, and the program as a command. It returns its path. pip copies the files
// and runs no code of it.
func wheel(version, system, program, out string) (string, error) {
	pep440, err := pythonVersion(version)
	if err != nil {
		return "", err
	}
	files, err := under("clients/python/src", "", ".py", ".typed")
	if err != nil {
		return "", err
	}
	metadata, err := pythonMetadata(pep440)
	if err != nil {
		return "", err
	}
	files = append(files, packed{name: "unitask-" + pep440 + ".data/scripts/unitask", from: program, mode: 0o755},
		packed{name: "unitask-" + pep440 + ".dist-info/licenses/LICENSE", from: "LICENSE"},
		packed{name: "unitask/" + skillPlace, from: skill})
	return writeWheel("unitask", pep440, wheelTags[system], metadata, files, out)
}

// writeWheel writes a wheel of these files and its METADATA, and returns its path.
func writeWheel(pkg, version, tags string, metadata []byte, files []packed, out string) (string, error) {
	name := filepath.Join(out, fmt.Sprintf("%s-%s-py3-none-%s.whl", pkg, version, tags))
	info := pkg + "-" + version + ".dist-info/"
	about := "Wheel-Version: 1.0\nGenerator: unitask hack/dist\nRoot-Is-Purelib: false\n"
	for tag := range strings.SplitSeq(tags, ".") {
		about += "Tag: py3-none-" + tag + "\n"
	}
	files = append(files, packed{name: info + "METADATA", text: metadata},
		packed{name: info + "WHEEL", text: []byte(about)})
	var list bytes.Buffer
	var err error
	for i, f := range files {
		if files[i].text, err = f.bytes(); err != nil {
			return "", err
		}
		sum := sha256.Sum256(files[i].text)
		fmt.Fprintf(&list, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[i].text))
	}
	fmt.Fprintf(&list, "%sRECORD,,\n", info)
	return name, zipped(name, append(files, packed{name: info + "RECORD", text: list.Bytes()}))
}

// pythonVersion returns a release's version as PEP 440 writes it.
func pythonVersion(version string) (string, error) {
	base, pre, found := strings.Cut(version, "-")
	if !found {
		return base, nil
	}
	m := regexp.MustCompile(`^(alpha|beta|rc)\.(\d+)$`).FindStringSubmatch(pre)
	if m == nil {
		return "", fmt.Errorf("version %q: PyPI knows -alpha.1, -beta.1 and -rc.1 only", version)
	}
	return base + map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[m[1]] + m[2], nil
}

// pythonMetadata returns a wheel's METADATA (version 2.4), from the client's pyproject.toml and README.
func pythonMetadata(version string) ([]byte, error) {
	var file struct {
		Project struct {
			Name, Description string
			Python            string `toml:"requires-python"`
			Dependencies      []string
			Extras            map[string][]string `toml:"optional-dependencies"`
		}
	}
	if _, err := toml.DecodeFile("clients/python/pyproject.toml", &file); err != nil {
		return nil, err
	}
	readme, err := os.ReadFile("clients/python/README.md")
	if err != nil {
		return nil, err
	}
	p := file.Project
	var b bytes.Buffer
	fmt.Fprintf(&b, "Metadata-Version: 2.4\nName: %s\nVersion: %s\nSummary: %s\n", p.Name, version, p.Description)
	fmt.Fprintf(&b, "License-Expression: MIT\nLicense-File: LICENSE\nRequires-Python: %s\n", p.Python)
	fmt.Fprintf(&b, "Project-URL: Source, %s\n", repository)
	for _, need := range p.Dependencies {
		fmt.Fprintf(&b, "Requires-Dist: %s\n", need)
	}
	extras := []string{}
	for extra, needs := range p.Extras {
		line := "Provides-Extra: " + extra + "\n"
		for _, need := range needs {
			line += fmt.Sprintf("Requires-Dist: %s; extra == %q\n", need, extra)
		}
		extras = append(extras, line)
	}
	slices.Sort(extras)
	b.WriteString(strings.Join(extras, ""))
	fmt.Fprintf(&b, "Description-Content-Type: text/markdown\n\n%s\n<!-- mcp-name: %s -->\n", readme, registryName)
	return b.Bytes(), nil
}
