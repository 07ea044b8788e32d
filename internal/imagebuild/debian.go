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
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// This file adds Debian packages to custom images. Over a bundled image, the host unpacks them and runs nothing of
// them. Over a container's image, the image's own dpkg installs them in a machine.

// unpackDebian fetches an image's Debian packages and unpacks them into a folder, whose parent the caller removes. It
// returns "" if there are none.
func (b *bundledBuild) unpackDebian(ctx context.Context) (folder string, err error) {
	if len(b.env.Debian) == 0 {
		return "", nil
	}
	b.now.Wanted = slices.Sorted(slices.Values(b.env.Debian))
	var locked []image.Deb
	if b.was != nil && slices.Equal(b.was.Wanted, b.now.Wanted) {
		locked = b.was.Debian
	}
	base := b.Catalog.Images.With(b.language.Image(b.env.From).Payload)
	if _, err := base.Obtain(ctx, image.Linux, b.arch); err != nil { // its parts tell what the image has
		return "", err
	}
	status, has, err := base.Parts().DebStatus(b.arch, b.env.Debian)
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
	b.tell("fetching " + strings.Join(b.env.Debian, " ") + " by apt")
	debs, err := base.Parts().Debs(ctx, b.arch, status, true, b.env.Debian, locked, from)
	if err != nil {
		return "", b.debianFailed(ctx, err)
	}
	if err := b.checkFound(debs, has); err != nil {
		return "", b.debianFailed(ctx, err)
	}
	found, err := image.UnpackDebs(ctx, from, debs, b.arch, to)
	if err != nil {
		return "", b.debianFailed(ctx, err)
	}
	if err := os.RemoveAll(from); err != nil {
		return "", err
	}
	if err := b.addHeaders(ctx, to); err != nil {
		return "", err
	}
	if len(found.Scripts) > 0 {
		b.tell("unpacked, without their installation scripts: " + strings.Join(found.Scripts, ", "))
	}
	b.takeFolders(found)
	b.now.Debian = debs
	return to, nil
}

// debianFailed names the packages that apt could not provide.
func (b *build) debianFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return policy.Bad("image", b.env.File, "debian: %.200s can't be had: %v", strings.Join(b.env.Debian, " "), err)
}

// checkFound returns an error for a requested package that apt has not found and the image lacks.
func (b *build) checkFound(debs []image.Deb, has []string) error {
	for _, spec := range b.env.Debian {
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

// takeFolders selects the folders that the guest mounts from the disk as a whole. These are folders at the root that
// the image lacks, and folders with many files, as far as the list has room.
func (b *bundledBuild) takeFolders(found image.DebFolder) {
	of := b.language.Image(b.env.From).Payload.Folders
	for _, dir := range slices.Concat(found.Tops, found.Crowded) {
		there := slices.ContainsFunc(slices.Concat(of, b.folders), func(other string) bool {
			return dir == other || strings.HasPrefix(dir, other+"/")
		})
		if all := slices.Concat(of, b.folders, []string{dir}); !there && len(strings.Join(all, "\n")) <= catalog.MaxFolders {
			b.folders = append(b.folders, dir)
		}
	}
	slices.Sort(b.folders)
}

// debsAt is the machine's folder with the packages to install; the layer does not have it.
const debsAt = "/tmp/unitask-debs"

// debianScript installs packages as the image's own apt or dpkg does, without a network, and leaves no logs and
// caches.
const debianScript = `export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true ` +
	`PATH="$PATH:/usr/sbin:/sbin:/usr/bin:/bin"
if command -v apt-get >/dev/null; then
	apt-get -q -y --no-install-recommends -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 install ` + debsAt +
	`/*.deb || exit
else
	dpkg --install ` + debsAt + `/*.deb || exit
fi </dev/null
rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache
`

// installDebian installs an image's Debian packages over a container's image, or uses the layer of an earlier build.
func (b *containerBuild) installDebian(ctx context.Context) error {
	if len(b.env.Debian) == 0 {
		return nil
	}
	b.now.Wanted = slices.Sorted(slices.Values(b.env.Debian))
	var locked []image.Deb
	if b.now.sameWanted(b.was) {
		locked = b.was.Debian
	}
	same := b.now.sameBase(b.was)
	if same && b.hasLayer(b.was.Installed) {
		b.now.Debian, b.now.Installed = b.was.Debian, b.was.Installed
		b.layers = append(b.layers, b.was.Installed)
		return nil
	}
	disk, err := b.base.Disk()
	if err != nil {
		return err
	}
	status, has, err := image.ContainerStatus(disk)
	disk.Close()
	if err != nil {
		return policy.Bad("image", b.env.File, "debian: %s %v", b.env.From, err)
	}
	if err := os.MkdirAll(b.Catalog.LayersDir(), 0o700); err != nil {
		return err
	}
	from, err := os.MkdirTemp(b.Catalog.LayersDir(), ".debs-") // pruning removes it if a build leaves it behind
	if err != nil {
		return err
	}
	defer os.RemoveAll(from)
	b.tell("fetching " + strings.Join(b.env.Debian, " ") + " by apt")
	debs, err := b.Catalog.Images.Parts().Debs(ctx, b.arch, status, false, b.env.Debian, locked, from)
	if err == nil {
		err = b.checkFound(debs, has)
	}
	if err != nil {
		return b.debianFailed(ctx, err)
	}
	if b.now.Debian = debs; len(debs) == 0 {
		return nil
	}
	c := change{what: "the packages", request: b.layerRequest(debianScript)}
	c.request.Dirs = []run.Mount{{Host: from, Guest: debsAt}}
	c.tell = fmt.Sprintf("installing %d packages of Debian over %s, in a machine of its own", len(debs), b.env.From)
	c.failed = func(res *run.Result) string {
		return fmt.Sprintf("debian: the image's own dpkg ended with exit code %d: %q (`unitask inspect %s` has the rest)",
			res.ExitCode, lastSaid(res), res.RunID)
	}
	if b.now.Installed, err = b.runLayer(ctx, b.base.Config, c); err != nil {
		return err
	}
	if same && b.was.Installed != "" && b.was.Installed != b.now.Installed {
		b.tellChanged("the packages are those of the lock file")
	}
	b.layers = append(b.layers, b.now.Installed)
	return nil
}
