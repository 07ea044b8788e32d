package unitask

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
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Images of the user's own. What one adds to the image that it begins with lies in the home's own/KEY/files,
// as it is in the guest; own/NAME.json is what its file said when it was built, and names the key. Runs look
// only there: a file that was changed means nothing until it is built.

// Catalog finds, lists, pulls and removes images: those that come along, the user's own, and containers'.
type Catalog struct {
	Home    string
	Images  *image.Store
	Records *record.Store
	Source  *machine.Source // of templates and pools
	Journal *audit.Journal
	Tell    func(run.Event)
	Enter   func() (leave func(), err error) // fails where the runtime is closed
}

// OwnImage is one that the user has described, as it was built.
type OwnImage struct {
	Schema      int                `json:"schema"`
	Name        string             `json:"name"`
	From        string             `json:"from"` // an image that comes along, or a container image's reference
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

	row language.Image
}

const (
	ownSchema     = 1
	maxOwnText    = 32 << 20
	maxOwnNesting = 40      // brackets in one another in a lock file
	maxOwnValues  = 1 << 20 // and values
	maxOwnTops    = 16
	maxFolders    = 1000 // bytes of contract.FoldersFile, which PID 1 reads
	ownLockEnds   = ".lock.json"
)

// ownTop is what a folder at the guest's root may be called.
var ownTop = regexp.MustCompile(`^[A-Za-z0-9._-]{1,40}$`)

func ownStore(dir string) *packages.Store { return &packages.Store{Dir: home.Dir(dir).Custom()} }

// readOwn is the image of that name, if the user has built one; the error wraps fs.ErrNotExist where not.
func readOwn(dir, name string) (*OwnImage, error) {
	if imagefile.CheckName(name) != nil {
		return nil, fs.ErrNotExist
	}
	file := home.Dir(dir).CustomFile(name)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	o := &OwnImage{}
	if err := json.Unmarshal(text, o); err != nil || o.Name != name || o.Schema != ownSchema || language.OfImage(o.From) == nil && o.Container == "" {
		return nil, fmt.Errorf("%s can't be read: `unitask image build` makes the image %s again, and `unitask image rm %[2]s` removes it", file, name)
	}
	return o, o.arrange(dir)
}

// arrange makes the row that the image would have if it came along.
func (o *OwnImage) arrange(dir string) error {
	if o.Container != "" {
		o.row = language.Image{About: o.Description, Payload: image.Payload{Name: o.Name, Container: true}}
		return nil
	}
	o.describe()
	p := &o.row.Payload
	if o.Key == "" {
		return nil
	}
	store := ownStore(dir)
	lock, err := store.Get(o.Key)
	if err == nil {
		p.Own.Folder = lock.Folder()
		p.Own.Verify = func() error { return store.Verify(lock) }
	} else {
		p.Own.Verify = func() error { return err }
	}
	verify := p.Own.Verify
	p.Own.Verify = func() error {
		if err := verify(); err != nil {
			return fmt.Errorf("what the image %s brings is not whole: %w: `unitask image build %s` makes it again", o.Name, err, o.File)
		}
		return nil
	}
	return nil
}

// describe makes the row of an image over one that comes along, but for its files.
func (o *OwnImage) describe() {
	o.row = *language.OfImage(o.From).Image(o.From)
	p := &o.row.Payload
	p.Name, p.Nanos = o.Name, false
	p.Own = &image.Own{Base: o.From, Digest: o.Digest, Runtime: o.Runtime, Files: python.WarmFiles(o.From == "data", o.Warm), Verify: func() error { return nil }}
	if language.OfImage(o.From).Name != "python" {
		p.Own.Files = nil
	}
	p.Folders = slices.Concat(p.Folders, o.Folders)
	if o.Description != "" {
		o.row.About = o.Description
	}
}

// OwnImages are those that the user has built, by their names; what can't be read is left out.
func (cat *Catalog) OwnImages() []*OwnImage {
	list, _ := cat.ownImages()
	return list
}

// ownImages are those that can be read, and why others can't.
func (cat *Catalog) ownImages() (list []*OwnImage, err error) {
	files, err := os.ReadDir(home.Dir(cat.Home).Custom())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, file := range files { // by their names
		name, is := strings.CutSuffix(file.Name(), ".json")
		if !is {
			continue
		}
		o, e := readOwn(cat.Home, name)
		switch {
		case e == nil:
			list = append(list, o)
		case !errors.Is(e, fs.ErrNotExist):
			err = errors.Join(err, e)
		}
	}
	return list, err
}

// imageRequest is a request with the custom image that it names, where it names one and that was looked up.
type imageRequest struct {
	Request
	own *OwnImage
}

// withOwn finds the user's own image of a request, if that is what it names; one comes before the image of the
// same name that comes along. One that came along from another host is there for who may have it.
func (cat *Catalog) withOwn(req imageRequest, ceiling *policy.Ceiling) (imageRequest, error) {
	if req.own != nil { // it is being built, or was found for a session
		return req, nil
	}
	if c := cat.along(req.Image, ceiling); c != nil {
		o, err := ownAlong(c)
		req.own = o
		return req, err
	}
	name := req.Image
	if name == "" {
		_, im, _, err := req.language()
		if err != nil {
			return req, nil // which is told later
		}
		name = im.Payload.Name
	}
	o, err := readOwn(cat.Home, name)
	if errors.Is(err, fs.ErrNotExist) {
		file := imagefile.Find(name, cat.environments())
		if imagefile.CheckName(name) != nil || language.OfImage(name) != nil {
			return req, nil
		}
		if _, err := os.Stat(file); err == nil {
			return req, policy.Bad("image", name, "is described by %s and not built: `unitask image build %s` does that", file, name)
		}
		return req, nil
	}
	if err != nil {
		return req, run.AsHostError("image", err)
	}
	req.own = o
	if req.MemoryMB == 0 {
		req.MemoryMB = o.MemoryMB
	}
	arch, err := image.ParseArch(string(req.Arch))
	if err == nil && arch != o.Arch {
		return req, policy.Bad("arch", string(arch), "is not what the image %s was built for, %s: `unitask image build --arch %s %s` builds it for the other one", name, o.Arch, arch, o.File)
	}
	return req, nil
}

// environments is the folder of the home with files of images.
func (cat *Catalog) environments() string { return home.Dir(cat.Home).ImageFiles() }

// pruneOwn removes what no image of the user's own has, and what builds left behind: files and layers. Where one can't
// be read it removes nothing. It is called where no build can be.
func (cat *Catalog) pruneOwn() error {
	list, err := cat.ownImages()
	if err != nil {
		return err
	}
	var named, layers []string
	for _, o := range list {
		named = append(named, o.Key)
		for _, digest := range o.Layers {
			layers = append(layers, cat.layerFile(digest))
		}
	}
	kept, err := os.ReadDir(cat.layersDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range kept {
		if file := filepath.Join(cat.layersDir(), e.Name()); !slices.Contains(layers, file) {
			if err := os.RemoveAll(file); err != nil {
				return err
			}
		}
	}
	store := ownStore(cat.Home)
	keys, err := store.Keys()
	for _, key := range keys {
		if err == nil && !strings.HasSuffix(key, ".json") && !slices.Contains(named, key) {
			err = store.Remove(key)
		}
	}
	return err
}

// tidyOwn is pruneOwn after a build, whose outcome it does not change.
func (cat *Catalog) tidyOwn() {
	if err := cat.pruneOwn(); err != nil {
		cat.Tell(Event{Kind: EventImage, Message: "what no image of your own has any more stays for now: " + err.Error()})
	}
}

// RemoveOwnImage removes an image of the user's own, and says whether there was one. Its file stays.
func (cat *Catalog) RemoveOwnImage(ctx context.Context, name string) (bool, error) {
	if imagefile.CheckName(name) != nil {
		return false, nil
	}
	held, err := cat.lockOwn(ctx)
	if err != nil {
		return false, err
	}
	defer held.Unlock()
	o, _ := readOwn(cat.Home, name)
	err = os.Remove(home.Dir(cat.Home).CustomFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	cat.Journal.Change(audit.ImageRemoved, map[string]any{"names": []string{name}})
	if o != nil && o.Container != "" {
		if err := cat.Images.UnnameContainer(ctx, o.Arch, name); err != nil {
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
		err = cat.pruneOwn()
	}
	return true, err
}
