package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/run"
)

// Custom is one that the user has described, as it was built.
type Custom struct {
	Schema      int                `json:"schema"`
	Name        string             `json:"name"`
	From        string             `json:"from"` // a bundled image, or a container image's reference
	File        string             `json:"file"` // that describes it
	Arch        image.Arch         `json:"arch"`
	Description string             `json:"description,omitempty"`
	Env         map[string]string  `json:"env,omitempty"`
	Warm        []string           `json:"warm,omitempty"`
	MemoryMB    int                `json:"memoryMb,omitempty"`
	System      string             `json:"system,omitempty"` // of its packages: pip or npm
	Packages    []packages.Package `json:"packages,omitempty"`
	Runtime     string             `json:"runtime,omitempty"` // the version of the language's program that they were installed for, if it matters
	Debian      []image.Deb        `json:"debian,omitempty"`
	Folders     []string           `json:"folders,omitempty"` // of the guest that it brings
	Key         string             `json:"key,omitempty"`     // "" where it brings no file
	Digest      string             `json:"digest,omitempty"`  // of all that it brings
	Bytes       int64              `json:"bytes"`
	Container   string             `json:"container,omitempty"` // the digest of what was built, where it is a container's
	Layers      []string           `json:"layers,omitempty"`    // digests of what was laid over that which it begins with
	Built       time.Time          `json:"built"`

	Row language.Image `json:"-"`
}

const (
	CustomSchema   = 1
	MaxLockText    = 32 << 20
	MaxLockNesting = 40      // brackets in one another in a lock file
	MaxLockValues  = 1 << 20 // and values
	MaxTops        = 16
	MaxFolders     = 1000 // bytes of contract.FoldersFile, which PID 1 reads
	LockFileEnds   = ".lock.json"
)

// Top is what a folder at the guest's root may be called.
var Top = regexp.MustCompile(`^[A-Za-z0-9._-]{1,40}$`)

func CustomStore(dir string) *packages.Store { return &packages.Store{Dir: home.Dir(dir).Custom()} }

// ReadCustom returns the image of that name, if the user has built one; the error wraps fs.ErrNotExist where not.
func ReadCustom(dir, name string) (*Custom, error) {
	if imagefile.CheckName(name) != nil {
		return nil, fs.ErrNotExist
	}
	file := home.Dir(dir).CustomFile(name)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	o := &Custom{}
	if err := json.Unmarshal(text, o); err != nil || o.Name != name || o.Schema != CustomSchema ||
		language.OfImage(o.From) == nil && o.Container == "" {
		return nil,
			fmt.Errorf(
				"%s can't be read: `unitask image build` makes the image %s again, and `unitask image rm %[2]s` removes it", file,
				name)
	}
	return o, o.Arrange(dir)
}

// Arrange makes the row that the image would have if it were bundled.
func (o *Custom) Arrange(dir string) error {
	if o.Container != "" {
		o.Row = language.Image{About: o.Description, Payload: image.Payload{Name: o.Name, Container: true}}
		return nil
	}
	o.describe()
	p := &o.Row.Payload
	if o.Key == "" {
		return nil
	}
	store := CustomStore(dir)
	lock, err := store.Get(o.Key)
	if err == nil {
		p.Custom.Folder = lock.Folder()
		p.Custom.Verify = func() error { return store.Verify(lock) }
	} else {
		p.Custom.Verify = func() error { return err }
	}
	verify := p.Custom.Verify
	p.Custom.Verify = func() error {
		if err := verify(); err != nil {
			return fmt.Errorf("what the image %s brings is not whole: %w: `unitask image build %s` makes it again", o.Name, err,
				o.File)
		}
		return nil
	}
	return nil
}

// describe makes the row of an image over a bundled one, but for its files.
func (o *Custom) describe() {
	o.Row = *language.OfImage(o.From).Image(o.From)
	p := &o.Row.Payload
	p.Name, p.Nanos = o.Name, false
	p.Custom = &image.Custom{Base: o.From, Digest: o.Digest, Runtime: o.Runtime,
		Files: python.WarmFiles(o.From == "data", o.Warm), Verify: func() error { return nil }}
	if language.OfImage(o.From).Name != "python" {
		p.Custom.Files = nil
	}
	p.Folders = slices.Concat(p.Folders, o.Folders)
	if o.Description != "" {
		o.Row.About = o.Description
	}
}

// Customs returns those that the user has built, by their names; what can't be read is left out.
func (cat *Catalog) Customs() []*Custom {
	list, _ := cat.customs()
	return list
}

// customs returns those that can be read, and why others can't.
func (cat *Catalog) customs() (list []*Custom, err error) {
	files, err := os.ReadDir(home.Dir(cat.Home).Custom())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, file := range files { // by their names
		name, is := strings.CutSuffix(file.Name(), ".json")
		if !is {
			continue
		}
		o, e := ReadCustom(cat.Home, name)
		switch {
		case e == nil:
			list = append(list, o)
		case !errors.Is(e, fs.ErrNotExist):
			err = errors.Join(err, e)
		}
	}
	return list, err
}

// ImageFiles returns the folder of the home with files of images.
func (cat *Catalog) ImageFiles() string { return home.Dir(cat.Home).ImageFiles() }

// pruneCustom removes what no image of the user's own has, and what builds left behind: files and layers. Where one
// can't be read it removes nothing. It is called where no build can be.
func (cat *Catalog) pruneCustom() error {
	list, err := cat.customs()
	if err != nil {
		return err
	}
	var named, layers []string
	for _, o := range list {
		named = append(named, o.Key)
		for _, digest := range o.Layers {
			layers = append(layers, cat.LayerFile(digest))
		}
	}
	kept, err := os.ReadDir(cat.LayersDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range kept {
		if file := filepath.Join(cat.LayersDir(), e.Name()); !slices.Contains(layers, file) {
			if err := os.RemoveAll(file); err != nil {
				return err
			}
		}
	}
	store := CustomStore(cat.Home)
	keys, err := store.Keys()
	for _, key := range keys {
		if err == nil && !strings.HasSuffix(key, ".json") && !slices.Contains(named, key) {
			err = store.Remove(key)
		}
	}
	return err
}

// TidyCustom is pruneCustom after a build, whose outcome it does not change.
func (cat *Catalog) TidyCustom() {
	if err := cat.pruneCustom(); err != nil {
		cat.Tell(run.Event{Kind: run.EventImage, Message: "what no image of your own has any more stays for now: " +
			err.Error()})
	}
}

// RemoveCustom removes an image of the user's own, and says whether there was one. Its file stays.
func (cat *Catalog) RemoveCustom(ctx context.Context, name string) (bool, error) {
	if imagefile.CheckName(name) != nil {
		return false, nil
	}
	held, err := cat.LockCustom(ctx)
	if err != nil {
		return false, err
	}
	defer held.Unlock()
	o, _ := ReadCustom(cat.Home, name)
	err = os.Remove(home.Dir(cat.Home).CustomFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	cat.Journal.Change(audit.ImageRemoved, map[string]any{"names": []string{name}})
	if o != nil && o.Container != "" {
		if err := cat.Images.Containers().Unname(ctx, o.Arch, name); err != nil {
			return true, err
		}
	}
	list, err := cat.Images.List()
	for _, im := range list {
		if err == nil && im.Base != "" && im.Name == name {
			_, err = cat.Images.Remove(im.Digest)
		}
	}
	if err == nil {
		err = cat.pruneCustom()
	}
	return true, err
}

// LockCustom has one build at a time: another's files, to which no name leads yet, would be taken for left behind.
func (cat *Catalog) LockCustom(ctx context.Context) (*filelock.Lock, error) {
	return filelock.Wait(ctx, home.Dir(cat.Home).Lock("own"), func() {
		cat.Tell(run.Event{Kind: run.EventImage, Message: "waiting for another unitask that builds an image"})
	})
}

func (cat *Catalog) LayersDir() string { return home.Dir(cat.Home).Layers() }

func (cat *Catalog) LayerFile(digest string) string {
	return filepath.Join(cat.LayersDir(), strings.TrimPrefix(digest, "sha256:")+".tar.zst")
}
