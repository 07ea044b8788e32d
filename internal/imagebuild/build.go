// Package imagebuild builds custom images from the user's files: over a bundled image packages and files, over a
// container's image layers, one with the file's own files and one for each thing that a machine has installed or run. A
// lock file beside the description says what came of it. Foreign code runs in machines only, which the Installer's
// Runner starts; on the host nothing of it runs. The front door calls it. Runs find what it has built by the catalog.
package imagebuild

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Builder builds custom images.
type Builder struct {
	Catalog     *catalog.Catalog // which images there are; its records and journal are the builds', too
	Installer   *install.Installer
	Ceiling     *policy.Ceiling // of what a build reaches; nil is none
	RequireJail []string
	CheckPath   func(field, path string) error // says what is wrong with a path in the guest
}

// tell says what a build is doing.
func (b *Builder) tell(message string) {
	b.Catalog.Tell(run.Event{Kind: run.EventImage, Message: message})
}

// Build builds a custom image, from a file or from that of its name in the home's environments, with the versions that
// the lock file beside it says; it writes that file where there is none. Foreign code runs in machines only, and reaches
// no more than the ceiling allows. Runs that name the image have this one from the moment that it is whole.
func (b *Builder) Build(ctx context.Context, from string, arch image.Arch) (*catalog.Custom, *image.Image, error) {
	bad := func(err error) (*catalog.Custom, *image.Image, error) {
		return nil, nil, policy.Bad("image", fmt.Sprintf("%.200q", from), "%v", err)
	}
	arch, err := image.ParseArch(string(arch))
	if err != nil {
		return bad(err)
	}
	env, err := imagefile.Read(imagefile.Find(from, b.Catalog.ImageFiles()), b.Catalog.ImageFiles(), language.Images())
	if err != nil {
		return bad(err)
	}
	if env.Name == policy.BroughtImages {
		return bad(fmt.Errorf("%s is a name that images can't have: in a ceiling it stands for those that come along from other hosts", env.Name))
	}
	o := &catalog.Custom{Schema: catalog.CustomSchema, Name: env.Name, From: env.From, File: env.File, Arch: arch, Description: env.Description, Env: env.Env, Warm: env.Warm, MemoryMB: env.MemoryMB}
	if imagefile.Contained(env.From) {
		return b.buildOnContainer(ctx, o, env)
	}
	l := language.OfImage(env.From)
	specs, err := b.checkDescription(o, env, l)
	if err == nil {
		err = stepNetwork{}.allowed(b.Ceiling, o.System, specs)
	}
	if err != nil {
		return bad(fmt.Errorf("%s: %w", env.File, err))
	}
	held, err := b.Catalog.LockCustom(ctx)
	if err != nil {
		return nil, nil, failed(ctx, err)
	}
	defer held.Unlock()
	lock, err := b.fill(ctx, o, env, l, specs)
	if err != nil {
		return nil, nil, failed(ctx, err)
	}
	im, err := b.finish(ctx, o, l, lock)
	if err != nil {
		b.Catalog.TidyCustom()
		return nil, nil, failed(ctx, err)
	}
	return o, im, nil
}

// failed says why a build has failed.
func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("cancelled: %w", context.Cause(ctx))
	}
	var field *policy.FieldError
	if errors.As(err, &field) {
		return err
	}
	return failure.Host("image", err)
}

// checkDescription holds what a description says against the image that it begins with, and returns its packages.
func (b *Builder) checkDescription(o *catalog.Custom, env *imagefile.Environment, l *language.Language) (specs []string, err error) {
	if o.Name == language.ContainerName {
		return nil, fmt.Errorf("%s is a name that images can't have", o.Name)
	}
	if len(env.Run)+len(env.Network) > 0 {
		return nil, fmt.Errorf("run: %s has no steps: begin with a container image, as from = \"debian:12\"", env.From)
	}
	for system, list := range map[string][]string{policy.Pip: env.Pip, policy.Npm: env.Npm} {
		of, err := parseSpecs(l, system, list)
		if err != nil {
			return nil, err
		}
		specs = append(specs, of...)
	}
	if len(specs) > 0 {
		o.Folders = append(o.Folders, l.Packages.Place)
		o.System = l.Packages.System
	}
	if len(o.Warm) > 0 && l.Name != "python" {
		return nil, fmt.Errorf("warm is for images with Python: %s has %s", env.From, l.Name)
	}
	if o.MemoryMB > 0 {
		if _, _, err := policy.Resolve(policy.Request{MemoryMB: o.MemoryMB}, nil); err != nil {
			return nil, err
		}
	}
	for _, f := range env.Files {
		top, _, _ := strings.Cut(f.Guest[1:], "/")
		taken := []string{"/tmp", contract.OutDir, path.Dir(contract.HomeDir), contract.WorkDir, "/root", "/sbin", "/lost+found", "/node_modules"}
		if b.CheckPath("files", f.Guest) != nil || !catalog.Top.MatchString(top) || slices.ContainsFunc(taken, func(dir string) bool { return "/"+top == dir }) {
			return nil, fmt.Errorf("files: %s is not where an image can have files: use a folder like /opt, /srv or /data", f.Guest)
		}
		if !slices.Contains(o.Folders, "/"+top) {
			o.Folders = append(o.Folders, "/"+top)
		}
	}
	slices.Sort(o.Folders)
	for _, spec := range env.Debian {
		if err := image.CheckDebSpec(spec); err != nil {
			return nil, fmt.Errorf("debian: %w", err)
		}
	}
	all := slices.Concat(l.Image(o.From).Payload.Folders, o.Folders)
	if len(o.Folders) > catalog.MaxTops || len(strings.Join(all, "\n")) > catalog.MaxFolders {
		return nil, fmt.Errorf("files: lie in %d folders at the root, which are too many or have too long names: put them into one", len(o.Folders))
	}
	return specs, nil
}

// fill installs the packages, and puts all that the image brings into the store; nil if that is nothing.
func (b *Builder) fill(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, l *language.Language, specs []string) (*packages.Lock, error) {
	all := &packages.Lock{System: o.System, Asked: specs, Arch: string(o.Arch), Runtime: l.Name, Links: len(env.Debian) > 0}
	if len(specs)+len(env.Debian)+len(env.Files) == 0 {
		return nil, nil
	}
	if len(specs)+len(env.Debian) == 0 {
		return all, b.storeContent(all, env, "", "", "")
	}
	lockName := lockFileOf(env)
	locks, err := readLockFile(lockName)
	if err != nil {
		return nil, err
	}
	slices.Sort(specs)
	was, now := locks.at(o.Arch), lockedBuild{Arch: o.Arch, System: o.System, Asked: specs}
	debs, err := b.unpackDebian(ctx, o, env, l, was, &now)
	if err != nil {
		return nil, err
	}
	if debs != "" {
		defer os.RemoveAll(filepath.Dir(debs))
	}
	if len(specs)+len(now.Debian)+len(env.Files) == 0 { // all of it is in the image
		return nil, nil
	}
	if len(specs) == 0 {
		err = b.storeContent(all, env, "", "", debs)
	} else {
		err = b.installPackages(ctx, o, env, l, was, &now, func(kept *packages.Lock, place string) error {
			all.Packages, all.Npm = kept.Packages, kept.Npm
			return b.storeContent(all, env, kept.Folder(), place, debs)
		})
	}
	if err != nil {
		return nil, err
	}
	if now.Debian != nil {
		now.Digest = all.Digest
	}
	if was != nil && was.sameAs(now) && was.Digest != now.Digest {
		b.tell("the packages are those of " + lockName + ", and have left other files than then")
	}
	locks.set(now)
	if err := locks.write(lockName); err != nil {
		return nil, err
	}
	o.Packages, o.Debian = all.Packages, now.Debian
	return all, nil
}

// installPackages installs what pip or npm is asked for, as it is locked, and uses it at its place in the guest.
func (b *Builder) installPackages(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, l *language.Language, was, now *lockedBuild, use func(kept *packages.Lock, place string) error) error {
	var locked *packages.Lock
	if was != nil && was.System == o.System && slices.Equal(was.Asked, now.Asked) {
		locked = &packages.Lock{Packages: was.Packages, Npm: was.Npm}
	}
	im, err := b.Catalog.Images.With(l.Image(o.From).Payload).Obtain(ctx, image.Linux, o.Arch)
	if err != nil {
		return err
	}
	place := image.At(l.Packages.Place, im.Runtime)
	if place != l.Packages.Place {
		o.Runtime = im.Runtime
		o.Folders[slices.Index(o.Folders, l.Packages.Place)] = place
	}
	to := install.Target{Language: l, Arch: o.Arch, Runtime: im.Runtime, Jail: b.RequireJail, Caller: run.Caller{Ceiling: b.Ceiling.Reaching()}.WithDefaults(), Tell: b.Catalog.Tell}
	return b.Installer.Ensure(ctx, to, now.Asked, locked, func(store *packages.Store, kept *packages.Lock) error {
		held, err := store.Hold(kept)
		if err != nil {
			return err
		}
		defer held.Unlock()
		if err := store.Verify(kept); err != nil {
			return err
		}
		now.Packages, now.Npm, now.Digest = kept.Packages, kept.Npm, kept.Digest
		return use(kept, place)
	})
}

// storeContent puts the packages of a folder, what of the guest's root another one has, and a description's files, into
// the store of custom images.
func (b *Builder) storeContent(all *packages.Lock, env *imagefile.Environment, folder, place, root string) error {
	r, w := io.Pipe()
	go func() {
		to := tar.NewWriter(w)
		err := env.WriteTo(to)
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
	r.CloseWithError(errors.New("the store takes no more")) // which ends the goroutine
	return err
}

// finish builds the disk, imports ahead what is to be, and has the name lead to the image.
func (b *Builder) finish(ctx context.Context, o *catalog.Custom, l *language.Language, lock *packages.Lock) (*image.Image, error) {
	if lock != nil {
		o.Key, o.Digest, o.Bytes = lock.Key, lock.Digest, lock.Bytes
	}
	if err := o.Arrange(b.Catalog.Home); err != nil {
		return nil, err
	}
	im, err := b.Catalog.Images.With(o.Row.Payload).Obtain(ctx, image.Linux, o.Arch)
	if err != nil {
		return nil, err
	}
	if len(o.Warm) > 0 {
		if err := b.tryImports(ctx, o, l); err != nil {
			return nil, err
		}
	}
	if err := b.publish(o, map[string]any{"image": im.Digest}); err != nil {
		return nil, err
	}
	return im, nil
}

// publish has the name lead to the image, which is whole.
func (b *Builder) publish(o *catalog.Custom, audited map[string]any) error {
	o.Built = time.Now().UTC().Truncate(time.Second)
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(home.Dir(b.Catalog.Home).Custom(), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(home.Dir(b.Catalog.Home).CustomFile(o.Name), append(text, '\n'), 0o600); err != nil {
		return err
	}
	maps.Copy(audited, map[string]any{"names": []string{o.Name}, "from": o.From, "file": o.File, "packages": len(o.Packages) + len(o.Debian), "built": true})
	b.Catalog.Journal.Change(audit.ImageAdded, audited)
	b.Catalog.TidyCustom()
	return nil
}

// tryImports finds out, in a machine, whether what is to be imported ahead can be.
func (b *Builder) tryImports(ctx context.Context, o *catalog.Custom, l *language.Language) error {
	code := "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
	req := catalog.Request{Custom: o, Request: run.Request{Code: code, Language: l.Name, Image: o.Name, Arch: o.Arch, Args: o.Warm, MemoryMB: o.MemoryMB, Cold: true, Timeout: python.DataPatience, RequireJail: b.RequireJail}}
	res, err := b.Installer.Run(ctx, run.Caller{}, req, nil)
	if err != nil {
		return err
	}
	if res.Outcome != run.OutcomeExited || res.ExitCode != 0 {
		last := strings.TrimSpace(string(res.Stderr))
		last = last[strings.LastIndexByte(last, '\n')+1:]
		return policy.Bad("image", o.File, "warm: %s can't be imported: %.300q %s(`unitask inspect %s` has the rest)", strings.Join(o.Warm, ", "), last, res.Error, res.RunID)
	}
	return b.Catalog.Records.Remove(res.RunID)
}
