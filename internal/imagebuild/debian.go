package imagebuild

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Debian's packages in custom images. Over an image that comes along they are unpacked on the host, and
// nothing of them runs. Over a container's image its own dpkg installs them, in a machine.

// unpackDebian fetches an image's packages of Debian and unpacks them into a folder, which is in one of its own, to be
// removed; "" where there are none.
func (b *Builder) unpackDebian(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, l *language.Language, was, now *lockedBuild) (folder string, err error) {
	if len(env.Debian) == 0 {
		return "", nil
	}
	now.Wanted = slices.Sorted(slices.Values(env.Debian))
	var locked []image.Deb
	if was != nil && slices.Equal(was.Wanted, now.Wanted) {
		locked = was.Debian
	}
	base := b.Catalog.Images.With(l.Image(o.From).Payload)
	if _, err := base.Obtain(ctx, image.Linux, o.Arch); err != nil { // whose parts say what is there
		return "", err
	}
	status, has, err := base.DebStatus(o.Arch, env.Debian)
	if err != nil {
		return "", err
	}
	store := catalog.CustomStore(b.Catalog.Home)
	if err := os.MkdirAll(store.Dir, 0o700); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(store.Dir, ".new-debian-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	from, to := filepath.Join(tmp, "debs"), filepath.Join(tmp, "root")
	for _, dir := range []string{from, to} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
	}
	b.tell("fetching " + strings.Join(env.Debian, " ") + " by apt")
	debs, err := b.Catalog.Images.Debs(ctx, o.Arch, status, env.Debian, locked, from)
	if err != nil {
		return "", debianFailed(ctx, o, env.Debian, err)
	}
	if err := b.checkFound(env.Debian, debs, has); err != nil {
		return "", debianFailed(ctx, o, env.Debian, err)
	}
	found, err := image.UnpackDebs(ctx, from, debs, o.Arch, to)
	if err != nil {
		return "", debianFailed(ctx, o, env.Debian, err)
	}
	if err := os.RemoveAll(from); err != nil {
		return "", err
	}
	if len(found.Scripts) > 0 {
		b.tell("unpacked, without their installation scripts: " + strings.Join(found.Scripts, ", "))
	}
	takeFolders(o, found, l)
	now.Debian = debs
	return to, nil
}

// debianFailed says which packages could not be had.
func debianFailed(ctx context.Context, o *catalog.Custom, specs []string, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return policy.Bad("image", o.File, "debian: %.200s can't be had: %v", strings.Join(specs, " "), err)
}

// checkFound says which package that was asked for is neither among those that apt has found nor in the image.
func (b *Builder) checkFound(specs []string, debs []image.Deb, has []string) error {
	for _, spec := range specs {
		name, _, _ := strings.Cut(spec, "=")
		if slices.ContainsFunc(debs, func(d image.Deb) bool { return d.Name == name }) {
			continue
		}
		if !slices.Contains(has, name) {
			return fmt.Errorf("%s is no package by itself", name)
		}
		b.tell(name + " is in the image already")
	}
	return nil
}

// takeFolders has folders with many files stay on the disk as a whole, as far as there is room to say so, and those at
// the root that the image has not.
func takeFolders(o *catalog.Custom, found image.DebFolder, l *language.Language) {
	of := l.Image(o.From).Payload.Folders
	for _, dir := range slices.Concat(found.Tops, found.Crowded) {
		there := slices.ContainsFunc(slices.Concat(of, o.Folders), func(other string) bool { return dir == other || strings.HasPrefix(dir, other+"/") })
		if all := slices.Concat(of, o.Folders, []string{dir}); !there && len(strings.Join(all, "\n")) <= catalog.MaxFolders {
			o.Folders = append(o.Folders, dir)
		}
	}
	slices.Sort(o.Folders)
}

// debsAt is where a machine has the packages that are to be installed; it is not in the layer.
const debsAt = "/tmp/unitask-debs"

// debianScript installs packages as the image's own apt or dpkg does, without a network, and leaves no logs and
// caches.
const debianScript = `export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true PATH="$PATH:/usr/sbin:/sbin:/usr/bin:/bin"
if command -v apt-get >/dev/null; then
	apt-get -q -y --no-install-recommends -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 install ` + debsAt + `/*.deb || exit
else
	dpkg --install ` + debsAt + `/*.deb || exit
fi </dev/null
rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache
`

// installDebian installs an image's packages of Debian over a container's image, or takes the layer that came of them.
func (b *Builder) installDebian(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, base *image.Container, was lockedLayer, now *lockedLayer) error {
	now.Wanted = slices.Sorted(slices.Values(env.Debian))
	var locked []image.Deb
	if now.sameWanted(was) {
		locked = was.Debian
	}
	same := now.sameBase(was)
	if same && b.hasLayer(was.Installed) {
		now.Debian, now.Installed = was.Debian, was.Installed
		o.Layers = append(o.Layers, was.Installed)
		return nil
	}
	disk, err := base.Disk()
	if err != nil {
		return err
	}
	status, has, err := image.ContainerStatus(disk)
	disk.Close()
	if err != nil {
		return policy.Bad("image", o.File, "debian: %s %v", o.From, err)
	}
	if err := os.MkdirAll(b.Catalog.LayersDir(), 0o700); err != nil {
		return err
	}
	from, err := os.MkdirTemp(b.Catalog.LayersDir(), ".debs-") // which goes with what builds left behind
	if err != nil {
		return err
	}
	defer os.RemoveAll(from)
	b.tell("fetching " + strings.Join(env.Debian, " ") + " by apt")
	debs, err := b.Catalog.Images.Debs(ctx, o.Arch, status, env.Debian, locked, from)
	if err == nil {
		err = b.checkFound(env.Debian, debs, has)
	}
	if err != nil {
		return debianFailed(ctx, o, env.Debian, err)
	}
	if now.Debian = debs; len(debs) == 0 {
		return nil
	}
	c := change{what: "the packages", request: layerRequest(o, debianScript)}
	c.request.Dirs = []run.Mount{{Host: from, Guest: debsAt}}
	c.tell = fmt.Sprintf("installing %d packages of Debian over %s, in a machine of its own", len(debs), o.From)
	c.failed = func(res *run.Result) string {
		return fmt.Sprintf("debian: the image's own dpkg ended with exit code %d: %q (`unitask inspect %s` has the rest)", res.ExitCode, lastSaid(res), res.RunID)
	}
	if now.Installed, err = b.runLayer(ctx, o, base, base.Config, c); err != nil {
		return err
	}
	if same && was.Installed != "" && was.Installed != now.Installed {
		b.tell("the packages are those of the lock file, and have left other files than then")
	}
	o.Layers = append(o.Layers, now.Installed)
	return nil
}
