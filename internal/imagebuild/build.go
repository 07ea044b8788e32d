// Package imagebuild builds custom images from the user's files. Over a bundled image it adds packages and files. Over
// a container's image it adds layers: one with the description's own files, and one for each installation or step in a
// machine. A lock file beside the description records the result. Foreign code runs only in machines, which the
// Installer's Runner starts, and never on the host. The front door calls the package. Runs find its images by the
// catalog.
package imagebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Builder builds custom images.
type Builder struct {
	Catalog     *catalog.Catalog // of all images; builds use its records and journal
	Installer   *install.Installer
	Ceiling     *policy.Ceiling // of a build's network; nil means none
	RequireJail []string
}

// build is a current build. The types that embed it have its results so far.
type build struct {
	*Builder
	env  *imagefile.Environment // the description
	arch image.Arch
	lock string // the lock file beside the description
}

// Build builds a custom image from a file, or from the file of its name in the home's environments. It uses the
// versions in the lock file beside it, or writes that file if there is none. Foreign code runs in machines only, and
// reaches no more than the ceiling allows. Once the image is complete, runs that name it get it.
func (b *Builder) Build(ctx context.Context, from string, arch image.Arch) (*catalog.Custom, *image.Image, error) {
	bad := func(err error) (*catalog.Custom, *image.Image, error) {
		return nil, nil, policy.Bad("image", fmt.Sprintf("%.200q", from), "%v", err)
	}
	began, err := b.describe(from, arch)
	if err != nil {
		return bad(err)
	}
	if imagefile.Contained(began.env.From) {
		return (&containerBuild{build: *began}).run(ctx)
	}
	l := language.OfImage(began.env.From)
	build := func(compilers *catalog.Custom) (*catalog.Custom, *image.Image, error) {
		over := &bundledBuild{build: *began, language: l, compilers: compilers}
		if err := over.check(); err != nil {
			return bad(fmt.Errorf("%s: %w", began.env.File, err))
		}
		return over.run(ctx)
	}
	o, im, err := build(nil)
	var none *install.NoCompilerError
	if !errors.As(err, &none) || l.Packages == nil {
		return o, im, err
	}
	if name, _ := l.CompilersFor(began.env.From); name == began.env.Name {
		return o, im, err
	}
	b.tell("packages are to be compiled: building again, with compilers")
	compilers, err := b.compilers(ctx, l, began.env.From, began.arch) // only one build runs at a time
	if err != nil {
		return nil, nil, failed(ctx, none.WithoutCompilers(err))
	}
	return build(compilers)
}

// describe reads a description, for a current build.
func (b *Builder) describe(from string, arch image.Arch) (*build, error) {
	arch, err := image.ParseArch(string(arch))
	if err != nil {
		return nil, err
	}
	file := imagefile.Find(from, b.Catalog.ImageFiles())
	if err := describeLanguage(file, from); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) && language.OfImage(from) != nil {
		return nil, fmt.Errorf("is a bundled image, which `unitask image build --image %s` builds", from)
	}
	env, err := imagefile.Read(file, b.Catalog.ImageFiles(), language.Images())
	if err != nil {
		return nil, err
	}
	if env.Name == policy.ShippedImages || env.Name == policy.OldShippedImages {
		return nil, fmt.Errorf("%s is a name that images can't have: "+
			"in a ceiling it stands for shipped images", env.Name)
	}
	return &build{Builder: b, env: env, arch: arch, lock: lockFileOf(env)}, nil
}

// failed returns why a build has failed.
func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return failure.Cancelled(ctx)
	}
	var field *policy.FieldError
	if errors.As(err, &field) {
		return err
	}
	return failure.Host("image", err)
}

// tell reports what a build is doing.
func (b *Builder) tell(message string) {
	b.Catalog.Tell(run.Event{Kind: run.EventImage, Message: message})
}

// tellChanged reports that something, built again by the lock file, differs from before.
func (b *Builder) tellChanged(what string) { b.tell(what + ", and have left other files than then") }

// custom returns the image by its description.
func (b *build) custom() *catalog.Custom {
	return &catalog.Custom{Schema: catalog.CustomSchema, Name: b.env.Name, From: b.env.From, File: b.env.File,
		Arch:        b.arch,
		Description: b.env.Description, Env: b.env.Env, Warm: b.env.Warm, MemoryMB: b.env.MemoryMB,
		TimeoutMs: b.env.Timeout.Milliseconds(), Language: b.env.Language}
}

// checkMemory returns an error if a description's memory is wrong.
func (b *build) checkMemory() error {
	if b.env.MemoryMB <= 0 {
		return nil
	}
	_, _, err := policy.Resolve(policy.Request{MemoryMB: b.env.MemoryMB}, nil)
	return err
}

// checkDebian returns an error if a description's Debian packages are wrong.
func (b *build) checkDebian() error {
	for _, spec := range b.env.Debian {
		if err := image.CheckDebSpec(spec); err != nil {
			return fmt.Errorf("debian: %w", err)
		}
	}
	return nil
}

// publish makes the name lead to the complete image.
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
	maps.Copy(audited, map[string]any{"names": []string{o.Name}, "from": o.From, "file": o.File,
		"packages": len(o.Packages) + len(o.Debian), "built": true})
	b.Catalog.Journal.Change(audit.ImageAdded, audited)
	b.Catalog.TidyCustom()
	return nil
}
