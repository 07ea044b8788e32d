package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/image/debian"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/home"
)

// Debian's packages for custom images: apt's resolver and client, with separate lists, and with the image's packages
// in
// place of the host's. Nothing is installed on the host.

// Deb identifies one exact package.
type Deb struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Digest  string `json:"digest"` // sha256-HEX of its archive
}

var (
	debName    = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*[a-z0-9+.]$`) // apt reads a trailing - as "remove this package"
	debNumber  = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+:~-]{0,99}$`)
	debDigest  = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)
	debUnmet   = regexp.MustCompile(`(?m)^ +(\S+ : .*(?:\n {10,}.*)*)`)
	debMissing = regexp.MustCompile(`(?m)^[EW]: (Failed to fetch .*)$`)
	debOther   = regexp.MustCompile(`(?m)^[EW]: (Conflicting distribution: .*)$`)
)

// Bounds on what is resolved.
const (
	maxDebs     = 1000    // packages of one resolution
	maxDebBytes = 1 << 30 // of all packages, as downloaded
	maxDebFiles = 4 << 30 // bytes of the files in all of them, wanted or not
	maxAptError = 900     // bytes of apt's error in ours
)

// CheckDebSpec returns an error unless the text is NAME or NAME=VERSION.
func CheckDebSpec(spec string) error {
	name, version, pinned := strings.Cut(spec, "=")
	if len(name) > 100 || !debName.MatchString(name) || pinned && !debNumber.MatchString(version) {
		return fmt.Errorf("%.100q is no package of Debian: NAME, or NAME=VERSION", spec)
	}
	return nil
}

// CheckDebs validates the list of a lock file, which others may have written.
func CheckDebs(list []Deb) error {
	if len(list) > maxDebs {
		return fmt.Errorf("has %d packages of Debian", len(list))
	}
	for _, d := range list {
		if CheckDebSpec(d.Name+"="+d.Version) != nil || !debDigest.MatchString(d.Digest) {
			return fmt.Errorf("has a package of Debian %.80q %.80q %.80q", d.Name, d.Version, d.Digest)
		}
	}
	return nil
}

// debsOnly lists packages that others depend on only for their installation scripts. These scripts do not run on
// bundled images, so a bundled image counts as having these packages.
var debsOnly = []string{"adduser", "cdebconf", "debconf", "dpkg", "init-system-helpers", "install-info", "lsb-base",
	"passwd", "sensible-utils", "sysvinit-utils", "tar", "ucf"}

// DebStatus returns the packages of this store's image, in the format of dpkg's status file, and their names. A
// package
// of debsOnly that was asked for is left out.
func (ps Parts) DebStatus(arch Arch, asked []string) (status []byte, names []string, err error) {
	var out bytes.Buffer
	add := func(name, version, more string) {
		fmt.Fprintf(&out,
			"Package: %s\nStatus: hold ok installed\nMaintainer: unitask\nArchitecture: %s\nMulti-Arch: foreign\nVersion: "+
				"%s\nDescription: in the image\n%s\n", name, arch, version, more)
		names = append(names, name)
	}
	for _, part := range append(ps.images.payload.parts(arch), certificatesPart) {
		p, err := ps.Get(arch, part)
		if err != nil {
			return nil, nil, err
		}
		if p.From == "debian" && debName.MatchString(p.Package) && debNumber.MatchString(p.Version) &&
			!slices.Contains(names, p.Package) {
			add(p.Package, p.Version, "")
		}
	}
	for _, name := range debsOnly {
		wanted := slices.ContainsFunc(asked, func(spec string) bool {
			only, _, _ := strings.Cut(spec, "=")
			return only == name
		})
		if wanted || slices.Contains(names, name) {
			continue
		}
		more := ""
		if name == "debconf" {
			more = "Provides: debconf-2.0\n"
		}
		add(name, "999:0", more)
	}
	return out.Bytes(), names, nil
}

// debApt runs apt's client for a system that a dpkg status file describes, with lists and caches of unitask's own.
// Nothing is installed, and the host need not know the architecture.
type debApt struct {
	arch    Arch
	state   string // folder for apt's lists
	said    string // apt's messages about what it could not fetch, each after "; "
	release string // of the sources
	sources string // of unitask's own (sources.list(5)); "" means the host's
	keys    string // armoured, of the archive of sources
}

// ofRelease returns apt's sources for the release.
func (a *debApt) ofRelease(m debian.Mirrors) string {
	if len(m.Main) == 0 {
		return ""
	}
	list := fmt.Sprintf("deb %s %s main\n", m.Main[0], a.release)
	if len(m.Security) > 0 {
		list += fmt.Sprintf("deb %s %s-security main\n", m.Security[0], a.release)
	}
	return list
}

func (a *debApt) options() []string {
	list := []string{
		"-q",
		"-o", "Dir::State=" + a.state,
		"-o", "Dir::State::status=" + filepath.Join(a.state, "status"),
		"-o", "Dir::Cache=" + filepath.Join(a.state, "cache"),
		"-o", "APT::Architecture=" + string(a.arch),
		"-o", "APT::Architectures=" + string(a.arch),
		"-o", "APT::Sandbox::User=root",
		"-o", "Debug::NoLocking=1",
		"-o", "Acquire::Languages=none",
		"-o", "Acquire::Retries=3",
	}
	if a.sources != "" {
		list = append(list, "-o", "Dir::Etc::sourcelist="+filepath.Join(a.state, "sources.list"),
			"-o", "Dir::Etc::sourceparts=/dev/null", "-o", "Dir::Etc::trusted=/dev/null",
			"-o", "Dir::Etc::trustedparts="+filepath.Join(a.state, keysFolder))
	}
	return list
}

// Debs resolves packages with their dependencies and fetches them into dir: the newest that fit, or locked ones with
// these digests. status is the dpkg status of the installed packages: they are not fetched, and those on hold keep
// their version. unpacked means that no dpkg installs the packages; a package that needs a newer revision of an
// installed one may then use the installed revision.
func (ps Parts) Debs(ctx context.Context, arch Arch, status []byte, unpacked bool, specs []string, locked []Deb,
	dir string) ([]Deb, error) {
	if err := ps.mayFetch("packages of Debian", "`unitask image build --offline=false`"); err != nil {
		return nil, err
	}
	unlock, err := ps.images.lock(ctx, "debs-"+string(arch))
	if err != nil {
		return nil, err
	}
	defer unlock()
	release := ps.images.payload.Release()
	a := &debApt{arch: arch, state: filepath.Join(home.Dir(ps.images.home).Cache(), "debs-"+string(arch)),
		release: release, keys: debian.Keys(release)}
	if unpacked { // onto a bundled image, whose libraries are of one release
		mirrors, err := ps.mirrors()
		if err != nil {
			return nil, err
		}
		if a.sources = a.ofRelease(mirrors); a.sources == "" {
			return nil, advised(debian.ErrNoMirror)
		}
	}
	if err := a.prepare(ctx, status); err != nil {
		return nil, err
	}
	list := locked
	if list == nil {
		list, err = a.resolve(ctx, specs)
		if err != nil && unpacked && a.takeRevisions(ctx, status) {
			list, err = a.resolve(ctx, specs)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		return list, nil
	}
	return a.fetch(ctx, list, locked != nil, dir)
}

// keysFolder has the keys of the sources. Its path may have blanks, which no option of a line of sources can have.
const keysFolder = "keys"

// prepare writes the status file and updates the lists.
func (a *debApt) prepare(ctx context.Context, status []byte) error {
	for _, sub := range []string{"lists/partial", "cache/archives/partial", keysFolder} {
		if err := os.MkdirAll(filepath.Join(a.state, sub), 0o755); err != nil {
			return err
		}
	}
	files := map[string]string{"status": string(status), "sources.list": a.sources, keysFolder + "/debian.asc": a.keys}
	for name, text := range files { // a source may have a login
		if err := atomicfile.Write(filepath.Join(a.state, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	_, errs, err := a.apt(ctx, a.state, "apt-get", "update")
	a.said = notFetched(errs)
	if m := debOther.FindStringSubmatch(errs); m != nil && err == nil && a.sources != "" {
		// apt only warns. Archives sign a release with the keys of the one before, too.
		err = fmt.Errorf("the mirror has another release in place of %s: %s", a.release, bounded.Said(m[1], maxAptError))
		return errors.Join(err, os.RemoveAll(filepath.Join(a.state, "lists"))) // apt would use them later
	}
	return err
}

// notFetched returns an update's warnings, each after "; ".
func notFetched(errs string) (said string) {
	for _, m := range debMissing.FindAllStringSubmatch(errs, 3) {
		said += "; " + m[1]
	}
	return bounded.Said(said, maxAptError)
}

// apt runs one of apt's tools and returns its output. The error contains apt's own error message.
func (a *debApt) apt(ctx context.Context, dir, tool string, args ...string) (out, errs string, err error) {
	quick := []string{"-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10",
		"-o", "APT::Install-Recommends=false", "-o", "APT::Install-Suggests=false"}
	cmd := exec.CommandContext(ctx, tool, slices.Concat(a.options(), quick, args)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", "", context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return "", "", fmt.Errorf("%s is not on this machine, and packages of Debian are resolved by it", tool)
	case err != nil:
		var said []string
		for line := range strings.Lines(stderr.String()) {
			if rest, ok := strings.CutPrefix(line, "E: "); ok {
				said = append(said, strings.TrimSpace(rest))
			}
		}
		for _, m := range debUnmet.FindAllStringSubmatch(stdout.String(), 5) {
			said = append(said, strings.Join(strings.Fields(m[1]), " "))
		}
		if len(said) == 0 {
			said = []string{tool + ": " + err.Error()}
		}
		err = errors.New(bounded.Said(strings.Join(said, "; ")+a.said, maxAptError))
	}
	return stdout.String(), stderr.String(), err
}

// resolve returns the packages that apt would fetch for an installation.
func (a *debApt) resolve(ctx context.Context, specs []string) (list []Deb, err error) {
	out, _, err := a.apt(ctx, a.state, "apt-get", append([]string{"install", "--no-remove", "--print-uris", "--"},
		specs...)...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if len(words) < 3 || !strings.HasPrefix(words[0], "'") {
			continue
		}
		name, _, _ := strings.Cut(words[1], "_")
		version, err := debVersion(words[1])
		if err == nil {
			err = CheckDebSpec(name + "=" + version)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, Deb{Name: name, Version: version})
	}
	if len(list) > maxDebs {
		return nil, fmt.Errorf("that would be %d packages: %d are the most", len(list), maxDebs)
	}
	slices.SortFunc(list, func(a, b Deb) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// fetch downloads packages. apt compares them with the archive's signed index, then fetch compares them with the
// lock.
func (a *debApt) fetch(ctx context.Context, list []Deb, locked bool, dir string) ([]Deb, error) {
	args := []string{"download", "--"}
	for _, d := range list {
		args = append(args, d.Name+"="+d.Version)
	}
	if _, _, err := a.apt(ctx, dir, "apt-get", args...); err != nil {
		if locked && ctx.Err() == nil {
			err = fmt.Errorf("%w: these versions are the lock file's; without it the newest are taken", err)
		}
		return nil, err
	}
	total := int64(0)
	got := slices.Clone(list)
	for i, d := range got {
		file, err := DebFile(dir, d)
		if err != nil {
			return nil, err
		}
		st, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		if total += st.Size(); total > maxDebBytes {
			return nil, fmt.Errorf("the packages have more than %d MiB", maxDebBytes>>20)
		}
		sum, err := sha256File(file)
		if err != nil {
			return nil, err
		}
		if got[i].Digest = "sha256-" + sum; locked && got[i].Digest != d.Digest {
			return nil, fmt.Errorf("%s %s of the archive has digest %s, and the lock file says %s", d.Name, d.Version,
				got[i].Digest, d.Digest)
		}
	}
	return got, nil
}

// DebFile returns the file of a package that Debs has fetched into a folder.
func DebFile(dir string, d Deb) (string, error) {
	for _, file := range glob(filepath.Join(dir, d.Name+"_*.deb")) {
		if version, err := debVersion(file); err == nil && version == d.Version {
			return file, nil
		}
	}
	return "", fmt.Errorf("apt-get download left no file of %s %s", d.Name, d.Version)
}

// debVersion returns the version in apt's name for a package's file, NAME_VERSION_ARCH.deb, in which %3a is a colon.
func debVersion(file string) (string, error) {
	words := strings.Split(filepath.Base(file), "_")
	if len(words) != 3 {
		return "", fmt.Errorf("read version of %s: it is not named as apt names packages", filepath.Base(file))
	}
	return url.PathUnescape(words[1])
}
