package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// packed is a file of a package.
type packed struct {
	name string      // its path in the package
	from string      // the file with its bytes, "" for text
	text []byte      // its bytes, if from is ""
	mode fs.FileMode // 0 for 0644
}

func (p packed) bytes() ([]byte, error) {
	if p.text != nil || p.from == "" {
		return p.text, nil
	}
	return os.ReadFile(p.from)
}

// under returns the files below a folder that have one of the endings, in order. Their names begin with prefix.
func under(dir, prefix string, endings ...string) (files []packed, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains(endings, filepath.Ext(path)) {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files = append(files, packed{name: prefix + filepath.ToSlash(rel), from: path})
		return err
	})
	return files, err
}

// zipped writes files into a zip.
func zipped(name string, files []packed) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z := zip.NewWriter(f)
	for _, file := range files {
		h := &zip.FileHeader{Name: file.name, Method: zip.Deflate, Modified: whenBuilt}
		h.SetMode(0o644 | file.mode)
		w, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		text, err := file.bytes()
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			return err
		}
	}
	return z.Close()
}

// tarball writes files into a .tar.gz.
func tarball(name string, files []packed) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zip := gzip.NewWriter(f)
	t := tar.NewWriter(zip)
	for _, file := range files {
		text, err := file.bytes()
		if err == nil {
			err = t.WriteHeader(&tar.Header{Name: file.name, Mode: int64(0o644 | file.mode), Size: int64(len(text)),
				ModTime: whenBuilt})
		}
		if err == nil {
			_, err = t.Write(text)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), zip.Close())
}
