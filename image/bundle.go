package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/bounded"
)

// A bundle holds all parts of the linux guest of one architecture, including unitask's own programs, for hosts without
// apt and a C compiler. It is a zstd-compressed tar with a folder ARCH/PART for each part, laid out as in the store,
// and a list of licences and sources. The same parts give the same bytes.
const (
	bundleSuffix   = ".tar.zst"
	bundleLicences = "LICENSES.txt"
)

// maxBundle bounds the download; a bundle has some 80 MiB.
const maxBundle = 512 << 20

// errNoDigest means that a bundle from the network can't be verified.
var errNoDigest = errors.New("it has no digest to be checked against")

// WriteBundle writes the store's parts of an architecture to a file.
func (ps Parts) WriteBundle(arch Arch, to string) error {
	if !strings.HasSuffix(to, bundleSuffix) {
		return fmt.Errorf("write bundle %s: its name must end in %s", to, bundleSuffix)
	}
	names := ps.bundled(arch)
	parts := make([]Part, 0, len(names))
	for _, name := range names {
		p, err := ps.Get(arch, name)
		if err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
		parts = append(parts, p)
	}
	for _, of := range ps.each() {
		i := slices.Index(names, of.Parts().guestPart())
		if i < 0 { // an image that is not in the bundle
			continue
		}
		if guest, err := of.Parts().guestDigest(arch); err != nil || parts[i].Digest != guest {
			return errors.Join(
				fmt.Errorf(
					"write bundle: the guest's programs are not those of this unitask: "+
						"`unitask image vendor --image %s --arch %s` compiles them", of.Name(), arch), err)
		}
	}
	err := atomicfile.Fill(to, 0o644, func(f *os.File) error {
		z, err := zstd.NewWriter(f, zstd.WithEncoderConcurrency(1)) // with more, the bytes differ
		if err != nil {
			return err
		}
		w := tar.NewWriter(z)
		for _, p := range parts {
			if err := bundlePart(w, arch, p); err != nil {
				return fmt.Errorf("part %s: %w", p.Name, err)
			}
		}
		list := bundleList(arch, parts)
		err = w.WriteHeader(&tar.Header{Name: path.Join(string(arch), bundleLicences), Typeflag: tar.TypeReg, Mode: 0o644,
			Size: int64(len(list))})
		if err == nil {
			_, err = io.WriteString(w, list)
		}
		return errors.Join(err, w.Close(), z.Close())
	})
	if err != nil {
		return fmt.Errorf("write bundle %s: %w", to, err)
	}
	return nil
}

// each returns the store once for each payload.
func (ps Parts) each() (list []*Store) {
	for _, p := range ps.images.payloads {
		list = append(list, ps.images.With(p))
	}
	return list
}

// bundled names the parts of a bundle: those of this store's images, and those of other images whose parts are all in
// the store.
func (ps Parts) bundled(arch Arch) (names []string) {
	for _, of := range ps.each() {
		parts := append(of.partsOf(Linux, arch), of.Parts().guestPart())
		lacks := slices.ContainsFunc(parts, func(name string) bool {
			_, err := of.Parts().Get(arch, name)
			return err != nil
		})
		if !lacks || of.Name() == ps.images.Name() {
			names = append(names, parts...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// bundleList returns the text that lists a bundle's parts, their licences and their sources.
func bundleList(arch Arch, parts []Part) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The parts of unitask's linux guest for %s. Texts of licences lie in the parts' folders.\n", arch)
	for _, p := range parts {
		source := "the source package of this version in Debian's archive"
		switch p.From {
		case "npm":
			source = "the sources that the npm package names"
		case "source":
			source = "its src folder"
		}
		fmt.Fprintf(&b, "\n%s %s (%s)\n  licence: %s\n  source: %s\n", p.Name, p.Version, p.Package, p.License, source)
	}
	return b.String()
}

// bundlePart writes one part, sorted by file name.
func bundlePart(w *tar.Writer, arch Arch, p Part) error {
	return filepath.WalkDir(p.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(p.dir, name)
		if err != nil {
			return err
		}
		if d.Type() == fs.ModeSymlink && strings.HasPrefix(rel, "include"+string(filepath.Separator)) {
			return nil // checkBundled refuses such links, and no compiler needs them
		}
		h := &tar.Header{Name: path.Join(string(arch), p.Name, filepath.ToSlash(rel)), Typeflag: tar.TypeReg, Mode: 0o644}
		if d.Type() == fs.ModeSymlink {
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = os.Readlink(name); err != nil {
				return err
			}
			return w.WriteHeader(h)
		}
		text := []byte(nil)
		if rel == partFile {
			p.Vendored, p.Bundled = time.Time{}, false // these differ between stores
			text, err = json.MarshalIndent(p, "", "  ")
		} else {
			text, err = os.ReadFile(name)
		}
		if err != nil {
			return err
		}
		if st, err := d.Info(); err != nil {
			return err
		} else if st.Mode().Perm()&0o100 != 0 {
			h.Mode = 0o755
		}
		h.Size = int64(len(text))
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
}

// takeBundle installs every part of a bundle, or none. The caller holds the vendor lock. takeBundle trusts the bundle:
// the caller has checked the digest, or the user has named the file.
func (ps Parts) takeBundle(arch Arch, file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := decompress(f)
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", file, err)
	}
	defer data.Close()
	if err := os.MkdirAll(ps.images.vendorDir(arch), 0o700); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(ps.images.vendorDir(arch), bundlePrefix)
	if err != nil {
		return nil, err
	}
	defer removeTree(tmp)
	if err := unpackTar(data, tmp, func(name string) (string, bool) { return name, true }); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", file, err)
	}
	entries, err := os.ReadDir(filepath.Join(tmp, string(arch)))
	if err != nil {
		return nil, fmt.Errorf("%s is no bundle for %s", file, arch)
	}
	var folders []string
	for _, e := range entries {
		dir := filepath.Join(tmp, string(arch), e.Name())
		if !e.IsDir() {
			continue
		}
		if err := ps.checkBundled(arch, e.Name(), dir); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if missing := ps.missing(Part{dir: dir}, arch, e.Name()); missing != "" {
			return nil, fmt.Errorf("%s: part %s lacks %s", file, e.Name(), missing)
		}
		folders = append(folders, dir)
	}
	var taken []string
	for _, dir := range folders {
		name, err := ps.takePartFolder(arch, dir, true)
		if err != nil {
			return taken, err
		}
		taken = append(taken, name)
	}
	if len(taken) == 0 {
		return nil, fmt.Errorf("%s is no bundle for %s: it holds no parts", file, arch)
	}
	return taken, nil
}

// checkBundled refuses unknown parts, and links that the host would follow: files built from the parts would contain
// the targets of such links. Links below root are only followed by the guest.
func (ps Parts) checkBundled(arch Arch, name, dir string) error {
	known := func(of *Store) bool {
		return slices.Contains(append(of.partsOf(Linux, arch), of.Parts().guestPart()), name)
	}
	if !slices.ContainsFunc(ps.each(), known) {
		return fmt.Errorf("%q is not a part of the linux guest", name)
	}
	links := filepath.Join(dir, "root") + string(filepath.Separator)
	return filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type() == fs.ModeSymlink && (name == "busybox" || !strings.HasPrefix(file, links)) {
			return fmt.Errorf("part %s: %s is a link", name, filepath.Base(file))
		}
		return nil
	})
}

// bundleAddress returns the address of the bundle for hosts without apt: the user's (PartsURL), else the address in
// bundles.lock, else "".
func (ps Parts) bundleAddress(arch Arch) (string, error) {
	if ps.images.PartsURL != "" {
		return strings.ReplaceAll(ps.images.PartsURL, "ARCH", string(arch)), nil
	}
	b, err := lockedBundle(arch)
	if err != nil || b.URL == "" {
		return "", err
	}
	return b.URL + "#" + b.Digest, nil
}

// installedBundle returns the path of the bundle that was installed with the program, or "". PartsURL hides it.
func (ps Parts) installedBundle(arch Arch) string {
	file := filepath.Join(ps.images.Installed, "parts_"+string(arch)+bundleSuffix)
	if ps.images.Installed == "" || ps.images.PartsURL != "" || !exists(file) {
		return ""
	}
	return file
}

// vendorBundle fetches the bundle for a host that can't use packages.
func (ps Parts) vendorBundle(ctx context.Context, arch Arch) error {
	address, err := ps.bundleAddress(arch)
	if err != nil {
		return err
	}
	if address == "" {
		return fmt.Errorf("%s, and this unitask knows no bundle of parts: name one with "+
			"UNITASK_PARTS_URL=https://…#sha256-HEX "+
			"or `unitask image vendor --from FILE`; on a Debian machine `unitask image vendor --to FILE%s` writes one",
			strings.Join(ps.lacks(arch), ", "), bundleSuffix)
	}
	_, err = ps.fetchBundle(ctx, arch, address)
	return err
}

// wantsBundle reports whether parts come from a bundle: the user wants that, or this host can't get them otherwise.
func (ps Parts) wantsBundle(arch Arch) bool {
	return ps.images.PartsURL != "" || len(ps.lacks(arch)) > 0
}

// lacks lists what this host lacks to get parts other than from a bundle.
func (ps Parts) lacks(arch Arch) (list []string) {
	if mirrors, err := ps.mirrors(); err == nil && len(mirrors.Main) == 0 {
		list = append(list, "no mirror of Debian is known (debianMirror in config.toml or UNITASK_DEBIAN_MIRROR names one)")
	}
	for _, program := range []string{"npm", compiler(arch)} {
		if _, err := exec.LookPath(program); err != nil {
			list = append(list, "there is no "+program)
		}
	}
	return list
}

// fetchBundle fetches a bundle and installs its parts. The caller holds the vendor lock. The digest follows the # of
// the address, or is that of bundles.lock for the same architecture.
func (ps Parts) fetchBundle(ctx context.Context, arch Arch, address string) ([]string, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") {
		return nil, fmt.Errorf("bundle %q: give an http or https address", bounded.Said(address, maxFetchError))
	}
	want := u.Fragment
	u.Fragment = ""
	shown := bounded.Said(u.String(), maxFetchError)
	if want == "" {
		locked, err := lockedBundle(arch)
		if err != nil {
			return nil, err
		}
		want = locked.Digest
	}
	if !strings.HasPrefix(want, "sha256-") {
		return nil, fmt.Errorf("bundle %s: %w: append #sha256-HEX, as the release's notes have it", shown, errNoDigest)
	}
	if err := ps.mayFetch("the bundle of parts for "+string(arch),
		"`unitask image vendor --offline=false --arch "+string(arch)+"`"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(ps.images.vendorDir(arch), 0o700); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(ps.images.vendorDir(arch), fetchPrefix)
	if err != nil {
		return nil, err
	}
	defer removeTree(tmp)
	ps.images.logf("fetching the bundle of parts, once: %s", shown)
	file := filepath.Join(tmp, "parts"+bundleSuffix)
	sums, err := download(ctx, u.String(), file, maxBundle)
	if err != nil {
		return nil, err
	}
	if got := "sha256-" + sums.sha256; got != want {
		return nil, fmt.Errorf("bundle %s has digest %s and not %s", shown, got, want)
	}
	return ps.takeBundle(arch, file)
}
