package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/unitask/unitask/image/erofs"
)

// packs reports whether the linux image has a compressed disk: the payload has files to compress, and the kernel has a
// driver. An unreadable driver is an error: without it, the image would be a different one.
func (s *Store) packs(kernel Part) (bool, error) {
	if len(s.payload.Packed) == 0 {
		return false, nil
	}
	driver, err := findModule(kernel.path("modules"), erofsModule)
	if driver == nil || err != nil {
		return false, err
	}
	needs, malformed := moduleNeeds(driver)
	if malformed != nil {
		return false, nil
	}
	for _, name := range needs {
		if !slices.Contains(packedModules, name) {
			return false, nil
		}
		if module, err := findModule(kernel.path("modules"), name); module == nil || err != nil {
			return false, err
		}
	}
	return true, nil
}

// findModule is like readModule, but returns nil for a missing module.
func findModule(dir, name string) ([]byte, error) {
	module, err := readModule(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return module, err
}

// moduleNeeds returns the modules that a module depends on.
func moduleNeeds(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, nil
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	var needs []string
	for _, line := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			needs = append(needs, strings.Split(list, ",")...)
		}
	}
	return needs, nil
}

// packedAt reports whether the contents of a file of the guest are compressed.
func (p Payload) packedAt(arch Arch, name string) bool {
	return slices.ContainsFunc(p.Packed, func(at string) bool {
		if suffix, ok := strings.CutPrefix(at, "*"); ok {
			return strings.HasSuffix(name, suffix)
		}
		return strings.HasPrefix(name, strings.ReplaceAll(at, "TRIPLET", arch.triplet()))
	})
}

// writePacked writes a tree as a bare erofs disk.
func (s *Store) writePacked(name string, t tree, arch Arch) (err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	var entries []erofs.Entry
	for _, n := range t.sorted() {
		entries = append(entries, erofs.Entry{Path: n.path, Mode: n.mode, Target: n.target, Open: n.open,
			Compress: s.payload.packedAt(arch, n.path)})
	}
	if _, err := erofs.Write(f, entries); err != nil {
		return err
	}
	return f.Chmod(0o444)
}

// packedEntries lists a compressed disk by path. It returns nil for any other disk.
func packedEntries(f *os.File, size int64) ([]Entry, error) {
	if !erofs.Is(f) {
		return nil, nil
	}
	infos, err := erofs.Read(f, size)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	list := make([]Entry, 0, len(infos))
	for _, i := range infos {
		list = append(list, Entry{Path: i.Path, Mode: i.Mode, Size: i.Size, Target: i.Target})
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}
