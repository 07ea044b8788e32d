package program

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"unicode/utf8"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// CheckInlineFiles returns an error if a request's inline files are wrong; main is the path of its code.
func CheckInlineFiles(list []run.InlineFile, main string) error {
	bad := func(value, reason string) error {
		return policy.Bad("inlineFiles", value, "%s", reason)
	}
	if len(list) > run.MaxInlineFiles {
		return bad(fmt.Sprintf("of %d files", len(list)),
			fmt.Sprintf("must be at most %d: bring a folder of them", run.MaxInlineFiles))
	}
	total := 0
	taken := map[string]bool{path.Base(main): true} // and whether it is a file
	for _, n := range list {
		quoted := fmt.Sprintf("%.200q", n.Name)
		if why := record.BadName(n.Name); why != "" {
			return bad(quoted, why)
		}
		if err := CheckGuestPath("inlineFiles", path.Join(path.Dir(main), n.Name)); err != nil {
			return err
		}
		if file, there := taken[n.Name]; there {
			return bad(quoted, map[bool]string{true: "is there already", false: "is a folder of another one"}[file])
		}
		taken[n.Name] = true
		for dir := path.Dir(n.Name); dir != "."; dir = path.Dir(dir) {
			if taken[dir] {
				return bad(quoted, "lies below "+fmt.Sprintf("%.200q", dir)+", which is a file")
			}
			taken[dir] = false
		}
		if !utf8.ValidString(n.Content) {
			return bad(quoted, "is not UTF-8 text: bring it as a file of the host")
		}
		total += len(n.Content)
	}
	if total > run.MaxInlineBytes {
		return bad(fmt.Sprintf("of %d bytes", total),
			fmt.Sprintf("must have at most %d together: bring them as files of the host", run.MaxInlineBytes))
	}
	return nil
}

// Beside returns the inline files for the guest, and their folders before them.
func (p *Program) Beside() (files []File) {
	at := path.Dir(p.Path)
	made := map[string]bool{".": true}
	var folder func(name string)
	folder = func(name string) {
		if made[name] {
			return
		}
		made[name] = true
		folder(path.Dir(name))
		dir := path.Join(at, name)
		files = append(files, File{guest.File{Path: dir, Mode: fs.ModeDir | 0o755, User: !p.Inputs.Under(dir)}, ""})
	}
	for _, n := range p.inlineFiles {
		folder(path.Dir(n.Name))
		files = append(files, TextFile(path.Join(at, n.Name), n.Content))
	}
	return files
}

// hasInlineFile reports whether the request has an inline file of that name.
func (p *Program) hasInlineFile(name string) bool {
	return slices.ContainsFunc(p.inlineFiles, func(n run.InlineFile) bool { return n.Name == name })
}
