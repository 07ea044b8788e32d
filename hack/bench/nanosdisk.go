package main

import (
	"io"
	"io/fs"
	"os"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/partition/mbr"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/image/tfs"
)

// nanosDisk writes the image's disk as `image build -o` does, but with the script as its program instead of the agent.
// Nanos takes no command line.
func nanosDisk(im *image.Image, disk string) error {
	from, err := os.Open(im.Path(image.DiskFile))
	if err != nil {
		return err
	}
	defer from.Close()
	st, err := from.Stat()
	if err != nil {
		return err
	}
	old := file.New(from, true)
	start, _, err := lastPartition(old)
	if err != nil {
		return err
	}
	files, err := tfs.Read(old, st.Size()-start, start)
	if err != nil {
		return err
	}
	if err := im.Export(disk); err != nil {
		return err
	}
	to, err := os.OpenFile(disk, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	storage := file.New(to, false)
	start, size, err := lastPartition(storage)
	if err != nil {
		return err
	}
	params := tfs.Params{Attributes: tfs.Tuple{
		{Name: "program", Value: "/usr/bin/node"}, {Name: "arguments", Value: []tfs.Value{"node", contract.Rehearsal}},
		{Name: "environment", Value: tfs.Tuple{{Name: "HOME", Value: "/"}}}, {Name: "debug_exit", Value: "t"},
		{Name: "en1", Value: files.Attributes().Get("en1")}}}
	fresh, err := tfs.Create(storage, size, start, params)
	if err != nil {
		return err
	}
	if err := copyFiles(fresh, files); err != nil {
		return err
	}
	return fresh.Close()
}

// lastPartition returns the offset of the root file system, in bytes.
func lastPartition(disk backend.File) (start, size int64, err error) {
	table, err := mbr.Read(disk, 512, 512)
	if err != nil {
		return 0, 0, err
	}
	for _, p := range table.Partitions {
		if p.Size > 0 {
			start, size = p.GetStart(), p.GetSize()
		}
	}
	return start, size, nil
}

func copyFiles(to, from *tfs.FileSystem) error {
	return fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case d.IsDir():
			return to.Mkdir(name)
		case d.Type() == fs.ModeSymlink:
			target, err := from.Readlink(name)
			if err != nil {
				return err
			}
			return to.Symlink(target, name)
		}
		src, err := from.Open(name)
		if err != nil {
			return err
		}
		dst, err := to.OpenFile(name, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(dst, src, make([]byte, 1<<20))
		return err
	})
}
