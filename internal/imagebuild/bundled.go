package imagebuild

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// bundledBuild builds a custom image over a bundled one.
type bundledBuild struct {
	build
	language *language.Language
	// packaged is the language whose packages it installs: language, or npm's for programs of a declared language or of
	// a shipped image.
	packaged *language.Language
	system   string   // of the packages: pip or npm
	specs    []string // of these
	folders  []string // in the guest, which the image adds
	runtime  string   // the version of the language's program, if the packages need it
	// compilers is the image in which packages were compiled, or nil.
	compilers *catalog.Custom
	found     func() *catalog.Custom // returns the image if another process has just built it, else nil

	was *lockedBuild // in the lock file, or nil
	now lockedBuild
}

// check checks the description against its base image and against the ceiling.
func (b *bundledBuild) check() error {
	if b.env.Name == language.ContainerName {
		return fmt.Errorf("%s is a name that images can't have", b.env.Name)
	}
	if len(b.env.Run)+len(b.env.Network) > 0 {
		return fmt.Errorf("run: %s has no steps: begin with a container image, as from = \"debian:12\"", b.env.From)
	}
	for system, list := range map[string][]string{policy.Pip: b.env.Pip, policy.Npm: b.env.Npm} {
		l := b.language
		if system == policy.Npm && (b.env.Language != nil || imagefile.FindShipped(b.env.Name) != nil) {
			l = language.OfSystem(system)
		}
		specs, err := parseSpecs(l, system, list)
		if err != nil {
			return err
		}
		b.specs = append(b.specs, specs...)
		if len(specs) > 0 {
			b.packaged = l
		}
	}
	if len(b.specs) > 0 {
		b.folders = append(b.folders, b.packaged.Packages.Place)
		b.system = b.packaged.Packages.System
	}
	if len(b.env.Warm) > 0 && b.language.Name != "python" {
		return fmt.Errorf("warm is for images with Python: %s has %s", b.env.From, b.language.Name)
	}
	if err := b.checkMemory(); err != nil {
		return err
	}
	if err := b.checkFiles(); err != nil {
		return err
	}
	if err := b.checkDebian(); err != nil {
		return err
	}
	all := slices.Concat(b.language.Image(b.env.From).Payload.Folders, b.folders)
	if len(b.folders) > catalog.MaxTops || len(strings.Join(all, "\n")) > catalog.MaxFolders {
		return fmt.Errorf(
			"files: lie in %d folders at the root, which are too many or have too long names: put them into one",
			len(b.folders))
	}
	return stepNetwork{}.allowed(b.Ceiling, b.system, b.specs)
}

// takenTops are folders at the guest's root that may have no files of an image.
var takenTops = []string{"/tmp", contract.OutDir, path.Dir(contract.HomeDir), contract.WorkDir,
	"/root", "/sbin", "/lost+found", "/node_modules"}

// checkFiles returns an error for a file in a forbidden place, and notes the files' folders.
func (b *bundledBuild) checkFiles() error {
	for _, f := range b.env.Files {
		name, _, _ := strings.Cut(f.Guest[1:], "/")
		top := "/" + name
		if program.CheckGuestPath("files", f.Guest) != nil || !catalog.Top.MatchString(name) ||
			slices.Contains(takenTops, top) {
			return fmt.Errorf("files: %s is not where an image can have files: use a folder like /opt, /srv or /data", f.Guest)
		}
		if !slices.Contains(b.folders, top) {
			b.folders = append(b.folders, top)
		}
	}
	slices.Sort(b.folders)
	return nil
}

// run builds the image.
func (b *bundledBuild) run(ctx context.Context) (*catalog.Custom, *image.Image, error) {
	held, err := b.Catalog.LockCustom(ctx)
	if err != nil {
		return nil, nil, failed(ctx, err)
	}
	defer held.Unlock()
	if b.found != nil {
		if o := b.found(); o != nil {
			return o, nil, nil
		}
		b.tell("building the image " + b.env.Name + ", once")
	}
	content, err := b.fill(ctx)
	if err != nil {
		return nil, nil, failed(ctx, err)
	}
	o, im, err := b.finish(ctx, content)
	if err != nil {
		b.Catalog.TidyCustom()
		return nil, nil, failed(ctx, err)
	}
	return o, im, nil
}

// fill installs the packages, and stores everything that the image adds; it returns nil if that is nothing.
func (b *bundledBuild) fill(ctx context.Context) (*packages.Lock, error) {
	if len(b.specs)+len(b.env.Debian)+len(b.env.Files) == 0 {
		return nil, nil
	}
	slices.Sort(b.specs)
	all := &packages.Lock{System: b.system, Asked: b.specs, Arch: string(b.arch), Runtime: b.language.Name,
		Links: len(b.env.Debian) > 0}
	if len(b.specs)+len(b.env.Debian) == 0 {
		return all, b.storeContent(all, "", "", "")
	}
	locks, err := readLockFile(b.lock)
	if err != nil {
		return nil, err
	}
	b.compare(&locks)
	debs, err := b.unpackDebian(ctx)
	if err != nil {
		return nil, err
	}
	if debs != "" {
		defer os.RemoveAll(filepath.Dir(debs))
	}
	if len(b.specs)+len(b.now.Debian)+len(b.env.Files) == 0 { // the image has everything already
		return nil, nil
	}
	if len(b.specs) == 0 {
		err = b.storeContent(all, "", "", debs)
	} else {
		err = b.installPackages(ctx, func(kept *packages.Lock, place string) error {
			all.Packages, all.Npm = kept.Packages, kept.Npm
			return b.storeContent(all, kept.Folder(), place, debs)
		})
	}
	if err != nil {
		return nil, err
	}
	if b.now.Debian != nil {
		b.now.Digest = all.Digest
	}
	if b.was != nil && b.was.sameAs(b.now) && b.was.Digest != b.now.Digest {
		b.tellChanged("the packages are those of " + b.lock)
	}
	locks.set(b.now)
	return all, locks.write(b.lock)
}

// compare begins the new entry of the lock file, and finds the earlier one whose versions it takes.
func (b *bundledBuild) compare(locks *lockFile) {
	b.was, b.now = locks.at(b.arch), lockedBuild{Arch: b.arch, System: b.system, Asked: b.specs}
	if of := b.language.Image(b.env.From).Payload.Release(); of != image.Release {
		b.now.Release = of
	}
	switch {
	case b.was == nil:
	case b.found != nil: // a run waits for it, and the archive may lack the locked versions
		b.was = nil
	case b.was.Release != b.now.Release: // its wheels and packages are for another version of the language
		b.tell(b.lock + " is for another version of " + b.language.Name + ": versions are chosen anew")
		b.was = nil
	}
}

// installPackages installs the packages of pip or npm in their locked versions, for their place in the guest.
func (b *bundledBuild) installPackages(ctx context.Context, use func(kept *packages.Lock, place string) error) error {
	var locked *packages.Lock
	if b.was != nil && b.was.System == b.system && slices.Equal(b.was.Asked, b.now.Asked) {
		locked = &packages.Lock{Packages: b.was.Packages, Npm: b.was.Npm}
	}
	from := b.env.From
	if b.packaged != b.language {
		from = b.packaged.Images[0].Payload.Name
	}
	im, err := b.Catalog.Images.With(b.packaged.Image(from).Payload).Obtain(ctx, image.Linux, b.arch)
	if err != nil {
		return err
	}
	usual := b.packaged.Packages.Place
	place := image.At(usual, im.Runtime)
	if place != usual {
		b.runtime = im.Runtime
		b.folders[slices.Index(b.folders, usual)] = place
	}
	to := install.Target{Language: b.packaged, Image: from, Arch: b.arch, Runtime: im.Runtime,
		Jail: b.RequireJail, Tell: b.Catalog.Tell, Compilers: b.compilers, Building: true,
		Caller: run.Caller{Ceiling: b.Ceiling.Reaching()}.WithDefaults()}
	return b.Installer.Ensure(ctx, to, b.now.Asked, locked, func(store *packages.Store, kept *packages.Lock) error {
		held, err := store.Hold(kept)
		if err != nil {
			return err
		}
		defer held.Unlock()
		if err := store.Verify(kept); err != nil {
			return err
		}
		b.now.Packages, b.now.Npm, b.now.Digest = kept.Packages, kept.Npm, kept.Digest
		return use(kept, place)
	})
}

// storeContent stores a folder of packages, a folder with files for the guest's root, and a description's files, for
// custom images.
func (b *bundledBuild) storeContent(all *packages.Lock, folder, place, root string) error {
	r, w := io.Pipe()
	go func() {
		to := tar.NewWriter(w)
		err := b.env.WriteTo(to)
		if err == nil && folder != "" {
			err = imagefile.WriteFolder(to, folder, place)
		}
		if err == nil && root != "" {
			err = imagefile.WriteRoot(to, root)
		}
		if err == nil {
			err = to.Close()
		}
		w.CloseWithError(err)
	}()
	store := catalog.CustomStore(b.Catalog.Home)
	if err := store.Remove(""); err != nil {
		return err
	}
	err := store.Add(all, r)
	r.CloseWithError(errors.New("the store takes no more")) // this ends the goroutine
	return err
}

// finish builds the disk, imports the modules that are imported ahead, and makes the name lead to the image. content is
// nil if the image adds nothing.
func (b *bundledBuild) finish(ctx context.Context, content *packages.Lock) (*catalog.Custom, *image.Image, error) {
	o := b.custom()
	o.System, o.Folders, o.Runtime = b.system, b.folders, b.runtime
	if content != nil {
		o.Key, o.Digest, o.Bytes = content.Key, content.Digest, content.Bytes
		o.Packages, o.Debian = content.Packages, b.now.Debian
	}
	if err := o.Arrange(b.Catalog.Home); err != nil {
		return nil, nil, err
	}
	im, err := b.Catalog.Images.With(o.Row.Payload).Obtain(ctx, image.Linux, o.Arch)
	if err != nil {
		return nil, nil, err
	}
	if err := b.tryImports(ctx, o); err != nil {
		return nil, nil, err
	}
	return o, im, b.publish(o, map[string]any{"image": im.Digest})
}

const importAll = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"

// tryImports finds out, in a machine, whether the modules for importing ahead can be imported.
func (b *bundledBuild) tryImports(ctx context.Context, o *catalog.Custom) error {
	if len(o.Warm) == 0 {
		return nil
	}
	req := run.Request{Code: importAll, Language: b.language.Name, Image: o.Name, Arch: o.Arch, Args: o.Warm,
		MemoryMB: o.MemoryMB, Cold: true, Timeout: python.DataPatience, RequireJail: b.RequireJail}
	res, err := b.Installer.Run(ctx, run.Caller{}, catalog.Request{Custom: o, Request: req}, nil)
	if err != nil {
		return err
	}
	if res.Outcome != run.OutcomeExited || res.ExitCode != 0 {
		last := strings.TrimSpace(string(res.Stderr))
		last = last[strings.LastIndexByte(last, '\n')+1:]
		return policy.Bad("image", o.File, "warm: %s can't be imported: %.300q %s(`unitask inspect %s` has the rest)",
			strings.Join(o.Warm, ", "), last, res.Error, res.RunID)
	}
	return b.Catalog.Records.Remove(res.RunID)
}
