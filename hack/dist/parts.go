package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// bundleName is the name that the program expects its installed bundle of parts under.
func bundleName(arch string) string { return "parts_" + arch + ".tar.zst" }

// partsPackages writes packages of the bundle of an architecture's parts, if that was built. If qemu is set, those for
// npm and PyPI contain a QEMU, which their users' systems may lack.
func partsPackages(version, arch, out, qemu string) error {
	bundle := filepath.Join(out, partsFile(version, arch))
	if _, err := os.Stat(bundle); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := linuxParts(version, arch, bundle, out); err != nil {
		return err
	}
	shared := []packed{{name: bundleName(arch), from: bundle}}
	if qemu != "" {
		files, err := qemuFiles(filepath.Join(qemu, arch))
		if err != nil {
			return err
		}
		shared = append(shared, files...)
	}
	return errors.Join(npmParts(version, arch, out, shared), wheelParts(version, arch, out, shared))
}

// qemuFiles returns the files of a QEMU that hack/qemu has built, with its licences.
func qemuFiles(dir string) (list []packed, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f := packed{name: "qemu/" + filepath.ToSlash(rel), from: path}
		if strings.HasPrefix(rel, "bin"+string(filepath.Separator)) {
			f.mode = 0o755
		}
		list = append(list, f)
		return nil
	})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s is empty: hack/qemu builds a QEMU there", dir)
	}
	return list, err
}

// npmParts writes the npm package @unitask/parts-linux-ARCH.
func npmParts(version, arch, out string, shared []packed) error {
	name := npmSystems["linux/"+arch]
	manifest, err := packageJSON(map[string]any{"name": "@unitask/parts-linux-" + name[1], "version": version,
		"description": "What machines of unitask boot from, and QEMU: for Linux on " + name[1],
		"license":     "SEE LICENSE IN share/unitask",
		"repository":  map[string]string{"type": "git", "url": "git+" + repository + ".git"},
		"os":          name[:1], "cpu": name[1:], "preferUnplugged": true})
	if err != nil {
		return err
	}
	files := []packed{{name: "package/package.json", text: manifest}}
	for _, f := range shared {
		f.name = "package/share/unitask/" + f.name
		files = append(files, f)
	}
	return tarball(filepath.Join(out, fmt.Sprintf("unitask-parts-linux-%s-%s.tgz", name[1], version)), files)
}

// wheelParts writes the wheel unitask-parts, which puts its files into share/unitask beside the program's folder.
func wheelParts(version, arch, out string, shared []packed) error {
	pep440, err := pythonVersion(version)
	if err != nil {
		return err
	}
	metadata := fmt.Sprintf("Metadata-Version: 2.4\nName: unitask-parts\nVersion: %s\n"+
		"Summary: What machines of unitask boot from, and QEMU\nProject-URL: Source, %s\n", pep440, repository)
	var files []packed
	for _, f := range shared {
		f.name = "unitask_parts-" + pep440 + ".data/data/share/unitask/" + f.name
		files = append(files, f)
	}
	_, err = writeWheel("unitask_parts", pep440, wheelTags["linux/"+arch], []byte(metadata), files, out)
	return err
}
