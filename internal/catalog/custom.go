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

// Custom is a custom image as it was built.
type Custom struct {
	Schema      int                `json:"schema"`
	Name        string             `json:"name"`
	From        string             `json:"from"` // a bundled image, or a container image's reference
	File        string             `json:"file"` // its description
	Arch        image.Arch         `json:"arch"`
	Description string             `json:"description,omitempty"`
	Env         map[string]string  `json:"env,omitempty"`
	Warm        []string           `json:"warm,omitempty"`
	MemoryMB    int                `json:"memoryMb,omitempty"`
	TimeoutMs   int64              `json:"timeoutMs,omitempty"`
	System      string             `json:"system,omitempty"` // of its packages: pip or npm
	Packages    []packages.Package `json:"packages,omitempty"`
	Runtime     string             `json:"runtime,omitempty"` // of the language's program, if the packages need it
	Debian      []image.Deb        `json:"debian,omitempty"`
	Folders     []string           `json:"folders,omitempty"` // in the guest, which it adds
	Key         string             `json:"key,omitempty"`     // "" if it adds no file
	Digest      string             `json:"digest,omitempty"`  // of all that it adds
	Bytes       int64              `json:"bytes"`
	Container   string             `json:"container,omitempty"` // the digest of the built container image, if it is one
	Layers      []string           `json:"layers,omitempty"`    // digests of the layers over its base image
	Built       time.Time          `json:"built"`

	Language *language.Declared `json:"language,omitempty"` // nil if its language is its base image's

	Row     language.Image `json:"-"`
	missing bool           // it is shipped, and not built yet
}

const (
	CustomSchema   = 1
	MaxLockText    = 32 << 20 // bytes of a lock file
	MaxLockNesting = 40       // levels of brackets in a lock file
	MaxLockValues  = 1 << 20  // and values
	MaxTops        = 16       // folders that a guest mounts from the disk as a whole
	MaxFolders     = 1000     // bytes of contract.FoldersFile, which PID 1 reads
	LockFileEnds   = ".lock.json"
)

// Top matches the name of a folder at the guest's root.
var Top = regexp.MustCompile(`^[A-Za-z0-9._-]{1,40}$`)

func CustomStore(dir string) *packages.Store { return &packages.Store{Dir: home.Dir(dir).Custom()} }

// ReadCustom returns the image of that name, if the user has built one; otherwise the error wraps fs.ErrNotExist.
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

// Arrange makes the image's row, like those of bundled images.
func (o *Custom) Arrange(dir string) error {
	if o.Container != "" {
		o.Row = language.Image{About: o.Description, Payload: image.Payload{Name: o.Name, Container: true}}
		return nil
	}
	if err := o.checkLanguage(); err != nil {
		return err
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

// describe makes the row of an image over a bundled one, without its files.
func (o *Custom) describe() {
	o.Row = *language.OfImage(o.From).Image(o.From)
	p := &o.Row.Payload
	p.Name, p.Nanos = o.Name, false
	p.Custom = &image.Custom{Base: o.From, Digest: o.Digest, Runtime: o.Runtime,
		Files: python.WarmFiles(language.Unversioned(o.From) == "data", o.Warm), Verify: func() error { return nil }}
	if language.OfImage(o.From).Name != "python" {
		p.Custom.Files = nil
	}
	p.Folders = slices.Concat(p.Folders, o.Folders)
	if o.Description != "" {
		o.Row.About = o.Description
	}
}

// Customs returns the custom images that the user has built, by their names, without those that can't be read.
func (cat *Catalog) Customs() []*Custom {
	list, _ := cat.customs()
	return list
}

// customs returns the custom images that can be read, and the errors of the others.
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

// ImageFiles returns the home's folder with the files of custom images.
func (cat *Catalog) ImageFiles() string { return home.Dir(cat.Home).ImageFiles() }

// pruneCustom removes files and layers that no custom image has, and those that builds left behind. If an image can't
// be read, it removes nothing. No build may run meanwhile.
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

// RemoveCustom removes a custom image, and reports whether there was one. Its description stays.
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

// LockCustom lets one build run at a time: the files of another, which has no name yet, would count as left behind.
func (cat *Catalog) LockCustom(ctx context.Context) (*filelock.Lock, error) {
	return filelock.Wait(ctx, home.Dir(cat.Home).Lock("own"), func() {
		cat.Tell(run.Event{Kind: run.EventImage, Message: "waiting for another unitask that builds an image"})
	})
}

func (cat *Catalog) LayersDir() string { return home.Dir(cat.Home).Layers() }

func (cat *Catalog) LayerFile(digest string) string {
	return filepath.Join(cat.LayersDir(), strings.TrimPrefix(digest, "sha256:")+".tar.zst")
}
