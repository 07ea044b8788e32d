package image

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"github.com/unitask/unitask/guest/contract"
)

// Payload describes the language of an image: its parts and how it is started.
type Payload struct {
	// Name is the image's name: node, python.
	Name string
	// Container means that the disk is a container's image (Store.OfContainer). There is no language, and the
	// initramfs holds Program, which is compiled.
	Container bool
	// Nanos means that the payload also runs on Nanos. LinuxFirst makes linux the default kernel; without it, the
	// default is Nanos, if available.
	Nanos, LinuxFirst bool
	// Sources are the C sources of the guest's own programs, including the language's.
	Sources fs.FS
	// Parts are the vendored parts of the image. The files below their root folders have the same paths in the guest.
	// The first part holds the program, there or under its base name. All are of one release of Debian (PartOf).
	Parts []string
	// Only maps those of Parts that exist for one architecture alone to that architecture.
	Only map[string]string
	// BuildParts hold headers for compiling Library, below include and in its subfolder Include. They are not in the
	// image.
	BuildParts []string
	Include    string
	// Program is the program's path in the guest. VERSION, here and in the other paths, stands for the vendored
	// version
	// of the language (At).
	Program string
	// ProgramSources are compiled into Program, if no part contains it.
	ProgramSources []string
	// Args and Env start Program; Args begins with its own name.
	Args, Env []string
	// NanosArgs follow the program's name on Nanos.
	NanosArgs []string
	// Library is the path in the guest of a shared object that is compiled from LibrarySources, with headers from the
	// first part and from BuildParts. "" means none.
	Library        string
	LibrarySources []string
	// NanosSources are compiled into the library for Nanos as well. nil means that both kernels use the same library.
	NanosSources []string
	// Files are additional texts by their path in the guest; a path that ends in / is an empty folder.
	Files map[string]string
	// Links are additional links by their path in the guest. TRIPLET in the path stands for the architecture's, as in
	// /usr/lib/TRIPLET.
	Links map[string]string
	// Folders are the folders of the guest with many files, which stay on the disk as a whole.
	Folders []string
	// Packed selects the files that are compressed on linux's disk, if the kernel can read that. An item selects the
	// paths that begin with it. An item that begins with * selects the paths that end with the rest of the item. Choose
	// large files that a machine's start does not read. TRIPLET is replaced as in Links.
	Packed []string
	// Compile is a command of the vendored program that adds files to the image while it is built (compile). It runs
	// only programs from the parts.
	Compile *Compile
	// Custom is what a custom image adds to the image that it begins with, or nil.
	Custom *Custom
}

// Custom describes what a user has added to an image.
type Custom struct {
	Base   string // name of the base image, whose payload provides the other fields
	Folder string // a folder of the host, whose files have the same paths in the guest
	// Archive replaces Folder if another host shipped the image. Container is the digest under which the archive is
	// stored.
	Archive, Container string
	Digest             string // of the additions
	// Runtime is the version of the language's program that the image was built for, "" for any.
	Runtime string
	Files   map[string]string // texts that replace the payload's or are added to them
	Verify  func() error      // reads Folder, and fails if it has changed
}

// base returns the name of the bundled image.
func (p Payload) base() string {
	if p.Custom != nil {
		return p.Custom.Base
	}
	return p.Name
}

// library names the file of the guest part that is Library on a kernel.
func (p Payload) library(kernel Kernel) string {
	if kernel == Nanos && p.NanosSources != nil {
		return nanosLibraryFile
	}
	return libraryFile
}

// Release returns the release of Debian that the parts are of.
func (p Payload) Release() string {
	if len(p.Parts) == 0 {
		return Release
	}
	_, release := plainPart(p.Parts[0])
	return release
}

// parts returns the parts for an architecture.
func (p Payload) parts(arch Arch) (names []string) {
	for _, name := range p.Parts {
		if only := p.Only[name]; only == "" || only == string(arch) {
			names = append(names, name)
		}
	}
	return names
}

// version is the placeholder for the language's version in a payload's paths.
const version = "VERSION"

// At fills the version of a language, such as Image.Runtime, into a guest path: 3.11.2-6 becomes 3.11.
func At(p, runtime string) string { return strings.ReplaceAll(p, version, twoNumbers(runtime)) }

// twoNumbers returns the first two numbers of a package's version: 1.24 of 1:1.24.2-1.
func twoNumbers(version string) string {
	if m := goVersion.FindStringSubmatch(version); m != nil {
		version = m[1]
	}
	if _, rest, ok := strings.Cut(version, ":"); ok {
		version = rest
	}
	major, rest, _ := strings.Cut(version, ".")
	return major + "." + rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
}

// partInText matches the placeholder for a part's version in a message.
var partInText = regexp.MustCompile(`\{[a-z0-9.+@-]+\}`)

// Versions replaces each {PART} in a text by the part's version, such as 3.11: the vendored version, or else that of
// the lock file.
func (s *Store) Versions(text string) string {
	text = partInText.ReplaceAllStringFunc(text, func(braced string) string {
		if p, err := s.Parts().Get(HostArch(), braced[1:len(braced)-1]); err == nil {
			return twoNumbers(p.Version)
		}
		return braced
	})
	return LockedVersions(text)
}

// LockedVersions replaces each {PART} in a text by the part's version in the lock file.
func LockedVersions(text string) string {
	return partInText.ReplaceAllStringFunc(text, func(braced string) string {
		name := braced[1 : len(braced)-1]
		locked, _ := Lock(HostArch())
		for _, p := range locked {
			if p.Name == name {
				return twoNumbers(p.Version)
			}
		}
		return braced
	})
}

// goVersion matches the version of Go in that of its module, such as v0.0.1-go1.26.8.linux-amd64.
var goVersion = regexp.MustCompile(`-go([0-9.]+)\.`)

// LanguageVersion returns the version of the program of the store's image, such as 3.13.5, without the distribution's
// revision. It is the vendored version, or else that of vendor.lock. It is "" for an image of a container.
func (ps Parts) LanguageVersion(arch Arch) string {
	parts := ps.images.payload.Parts
	if len(parts) == 0 {
		return ""
	}
	found := ""
	if p, err := ps.Get(arch, parts[0]); err == nil {
		found = p.Version
	} else {
		locked, _ := Lock(arch)
		for _, p := range locked {
			if p.Name == parts[0] {
				found = p.Version
			}
		}
	}
	if m := goVersion.FindStringSubmatch(found); m != nil {
		return m[1]
	}
	return upstream(found)
}

// at returns the payload with the version filled into its paths.
func (p Payload) at(runtime string) Payload {
	if !strings.Contains(p.Program, version) {
		return p
	}
	all := func(list []string) (paths []string) {
		for _, s := range list {
			paths = append(paths, At(s, runtime))
		}
		return paths
	}
	p.Program, p.Include, p.Folders = At(p.Program, runtime), At(p.Include, runtime), all(p.Folders)
	files := map[string]string{}
	for name, text := range p.Files {
		files[At(name, runtime)] = text
	}
	p.Files = files
	if p.Compile != nil {
		p.Compile = &Compile{Dirs: all(p.Compile.Dirs), Args: all(p.Compile.Args), Env: p.Compile.Env}
	}
	return p
}

// versioned returns the store with the version of an architecture's parts filled into the payload's paths.
func (s *Store) versioned(arch Arch) (*Store, error) {
	if !strings.Contains(s.payload.Program, version) {
		return s, nil
	}
	p, err := s.Parts().Get(arch, s.payload.Parts[0])
	if err != nil {
		return nil, err
	}
	if own := s.payload.Custom; own != nil && own.Runtime != "" && At(version, own.Runtime) != At(version, p.Version) {
		again := "`unitask image build` with its file makes it again"
		if own.Container != "" {
			again = "build it where it comes from with the version that this worker has, or vendor this one again"
		}
		return nil, fmt.Errorf("the image %s has packages for %s %s, and here is %s by now: %s", s.Name(), own.Base,
			At(version, own.Runtime), p.Version, again)
	}
	return s.With(s.payload.at(p.Version)), nil
}

// execText returns the program's path, its arguments and its environment in the form that PID 1 reads.
func (p Payload) execText() string {
	list := func(s []string) string { return strings.Join(s, "\x00") + "\x00\x00" }
	return p.Program + "\x00" + list(p.Args) + list(p.Env)
}

// payloadTree returns the files for both kernels: the language, the guest's own programs, and the few files of /etc
// that
// libc reads.
func (s *Store) payloadTree(kernel Kernel, arch Arch) (tree, []Part, error) {
	t := tree{}
	var parts []Part
	var libc string
	for _, name := range append(s.payload.parts(arch), certificatesPart, s.Parts().guestPart()) {
		p, err := s.Parts().Get(arch, name)
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, p)
		if plain, _ := plainPart(name); plain == libcPart {
			libc = p.Version
		}
		switch name {
		case certificatesPart:
			bundle, err := certBundle(p.path("certs"))
			if err != nil {
				return nil, nil, err
			}
			t.text("/etc/ssl/certs/ca-certificates.crt", bundle)
		case s.Parts().guestPart():
			if s.payload.ProgramSources != nil {
				t.file(s.payload.Program, 0o755, p.path(programFile))
			}
			if s.payload.Library != "" {
				t.file(s.payload.Library, 0o755, p.path(s.payload.library(kernel)))
			}
		default:
			if program := p.path(path.Base(s.payload.Program)); name == s.payload.Parts[0] && exists(program) {
				t.file(s.payload.Program, 0o755, program)
			} else if err := t.copyRoot(p); err != nil && p.Version != gone {
				return nil, nil, fmt.Errorf("read part %s: %w", name, err)
			}
		}
	}
	for name, text := range s.payload.Files {
		if strings.HasSuffix(name, "/") {
			t.dir(name, 0o755)
			continue
		}
		t.text(name, text)
	}
	for name, target := range s.payload.Links {
		t.link(strings.ReplaceAll(name, "TRIPLET", arch.triplet()), target)
	}
	for _, dir := range usualFolders {
		t.dir(dir, 0o755)
	}
	if len(s.payload.Folders) > 0 {
		t.text(contract.FoldersFile, strings.Join(s.payload.Folders, "\n")+"\n")
	}
	t.text(contract.ExecFile, s.payload.execText())
	t.text("/etc/passwd", fmt.Sprintf("root:x:0:0:root:/:/bin/sh\nuser:x:%d:%[1]d:user:%s:/bin/sh\n", contract.UserID,
		contract.HomeDir))
	t.text("/etc/group", fmt.Sprintf("root:x:0:\nuser:x:%d:\n", contract.UserID))
	// Files that a run brings belong to root, so that the code can't write to them: git would distrust them.
	t.text("/etc/gitconfig", "[safe]\n\tdirectory = *\n")
	t.text("/etc/hosts", "127.0.0.1 localhost "+contract.Hostname+"\n::1 localhost\n")
	t.text("/etc/hostname", contract.Hostname+"\n")
	t.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
	t.text("/etc/os-release", osRelease(libc))
	t.text("/etc/resolv.conf", "nameserver "+contract.GatewayIP+"\noptions timeout:2 attempts:1\n")
	return t, parts, nil
}

// usualFolders are empty folders that programs expect. On linux, PID 1 creates them.
var usualFolders = []string{"/mnt", "/opt", "/srv", "/var"}

// releases lists the distributions' releases by the version of their libc.
var releases = []struct{ libc, id, name, number, code string }{
	{"2.36-", "debian", "Debian GNU/Linux", "12", "bookworm"},
	{"2.41-", "debian", "Debian GNU/Linux", "13", "trixie"},
	{"2.39-0ubuntu", "ubuntu", "Ubuntu", "24.04", "noble"},
}

// osRelease describes the distribution of the guest's libraries (os-release(5)).
func osRelease(libc string) string {
	for _, r := range releases {
		if strings.HasPrefix(libc, r.libc) && strings.Contains(libc, "ubuntu") == (r.id == "ubuntu") {
			return fmt.Sprintf(
				"PRETTY_NAME=\"%s %s (%s)\"\nNAME=\"%[1]s\"\nVERSION_ID=\"%[2]s\"\nVERSION=\"%[2]s "+
					"(%[3]s)\"\nVERSION_CODENAME=%[3]s\nID=%[4]s\n", r.name, r.number, r.code, r.id)
		}
	}
	if strings.Contains(libc, "ubuntu") {
		return "PRETTY_NAME=\"Ubuntu\"\nNAME=\"Ubuntu\"\nID=ubuntu\n"
	}
	return "PRETTY_NAME=\"Debian GNU/Linux\"\nNAME=\"Debian GNU/Linux\"\nID=debian\n"
}

// certBundle joins the certificates of a folder, in the order of their names.
func certBundle(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no certificates in %s", dir)
	}
	sort.Strings(files)
	var all bytes.Buffer
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		all.Write(bytes.TrimSpace(text))
		all.WriteByte('\n')
	}
	return all.String(), nil
}
