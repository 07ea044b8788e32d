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

// Payload is the language that images run: what it is made of and how it is started.
type Payload struct {
	// Name is the image's: node, python.
	Name string
	// Container says that the disk is a container's image (Store.OfContainer): there is no language, and
	// Program, which is compiled, is in the initramfs.
	Container bool
	// Nanos says that it runs on that kernel, too. LinuxFirst says that linux is the one where none is
	// asked for: elsewhere it is Nanos, if there is one.
	Nanos, LinuxFirst bool
	// Sources are the C sources of the guest's own programs, the language's among them.
	Sources fs.FS
	// Parts are the vendored parts that it is made of; everything below their root folders
	// is at the same place in the guest. The first one holds the program, there or under its
	// base name.
	Parts []string
	// Only are those of Parts that one architecture alone has.
	Only map[string]string
	// BuildParts hold headers that Library is compiled with, below include and Include in it; they are
	// not in the image.
	BuildParts []string
	Include    string
	// Program is the program's path in the guest. In it and in the other paths VERSION stands for the
	// language's version that is vendored (At).
	Program string
	// ProgramSources are compiled into it, where it is none of the parts'.
	ProgramSources []string
	// Args and Env start it; Args begins with its own name.
	Args, Env []string
	// NanosArgs follow the name on Nanos.
	NanosArgs []string
	// Library is the path in the guest of a shared object that is compiled from
	// LibrarySources, with headers from the first part and those of BuildParts; "" is none.
	Library        string
	LibrarySources []string
	// NanosSources are in it as well on Nanos, where it is another one; nil if both kernels have the same.
	NanosSources []string
	// Files are texts that it brings, by their path in the guest; one that ends in / is an empty folder.
	Files map[string]string
	// Links are links that it brings, by their path in the guest; TRIPLET in that stands for the
	// architecture's, as in /usr/lib/TRIPLET.
	Links map[string]string
	// Folders are those of the guest that stay on the disk as a whole: they have many files.
	Folders []string
	// Packed says which files' contents are compressed on linux's disk, if its kernel can read that: those whose paths
	// begin so, or end so where it begins with *. They are to be large, and nothing that a machine's start reads. TRIPLET
	// stands for what it does in Links.
	Packed []string
	// Compile is a command of the vendored program, run while an image is built, that adds files to
	// the folder that it is given (compile). It runs nothing but what the parts have.
	Compile *Compile
	// Custom is what a custom image has beside the one that it begins with, nil if it is none.
	Custom *Custom
}

// Custom is what a user has added to an image.
type Custom struct {
	Base   string // the image's name, whose other parts of the payload these are
	Folder string // of the host; what is in it is at the same place in the guest
	// Archive is what there is in place of Folder where the image was shipped by another host, and Container the
	// digest by which that is kept.
	Archive, Container string
	Digest             string // of what it brings
	// Runtime is the version of the language's program for which it was made, "" for any.
	Runtime string
	Files   map[string]string // texts, in the place of the payload's or beside them
	Verify  func() error      // reads Folder, and says that it is not what it was
}

// base returns the name of the bundled image.
func (p Payload) base() string {
	if p.Custom != nil {
		return p.Custom.Base
	}
	return p.Name
}

// library names the file of the guest's part that is Library on a kernel.
func (p Payload) library(kernel Kernel) string {
	if kernel == Nanos && p.NanosSources != nil {
		return nanosLibraryFile
	}
	return libraryFile
}

// parts returns those that an architecture has.
func (p Payload) parts(arch Arch) (names []string) {
	for _, name := range p.Parts {
		if only := p.Only[name]; only == "" || only == string(arch) {
			names = append(names, name)
		}
	}
	return names
}

// version is what VERSION stands for in a payload's paths.
const version = "VERSION"

// At returns a path in a guest whose language has a version, as Image.Runtime is: of 3.11.2-6 there it is 3.11.
func At(p, runtime string) string { return strings.ReplaceAll(p, version, twoNumbers(runtime)) }

// twoNumbers returns the first two of a package's version: 1.24 of 1:1.24.2-1.
func twoNumbers(version string) string {
	if _, rest, ok := strings.Cut(version, ":"); ok {
		version = rest
	}
	major, rest, _ := strings.Cut(version, ".")
	return major + "." + rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
}

// partInText stands for a part's version in a text for people.
var partInText = regexp.MustCompile(`\{[a-z0-9.+-]+\}`)

// Versions has in the place of each {PART} of a text the version, as 3.11, of the part that is here, or else of
// the one that vendor.lock names.
func (s *Store) Versions(text string) string {
	return partInText.ReplaceAllStringFunc(text, func(braced string) string {
		name := braced[1 : len(braced)-1]
		if p, err := s.Parts().Get(HostArch(), name); err == nil {
			return twoNumbers(p.Version)
		}
		locked, _ := Lock(HostArch())
		for _, p := range locked {
			if p.Name == name {
				return twoNumbers(p.Version)
			}
		}
		return braced
	})
}

// at returns the payload with the paths of a version.
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

// versioned returns the store with the payload's paths as the parts of an architecture have them.
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
			again = "build it where it comes from with the version that this worker has, or have this one vendored anew"
		}
		return nil, fmt.Errorf("the image %s has packages for %s %s, and here is %s by now: %s", s.Name(), own.Base,
			At(version, own.Runtime), p.Version, again)
	}
	return s.With(s.payload.at(p.Version)), nil
}

// execText returns the program's path, its arguments and its environment as PID 1 reads them.
func (p Payload) execText() string {
	list := func(s []string) string { return strings.Join(s, "\x00") + "\x00\x00" }
	return p.Program + "\x00" + list(p.Args) + list(p.Env)
}

// payloadTree returns what both kernels have: the language, the guest's own programs and the
// few files of /etc that libc reads.
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
		if name == libcPart {
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
	// Files that a run brings are root's, so that the code can't write to them: git would take them for a stranger's.
	t.text("/etc/gitconfig", "[safe]\n\tdirectory = *\n")
	t.text("/etc/hosts", "127.0.0.1 localhost "+contract.Hostname+"\n::1 localhost\n")
	t.text("/etc/hostname", contract.Hostname+"\n")
	t.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
	t.text("/etc/os-release", osRelease(libc))
	t.text("/etc/resolv.conf", "nameserver "+contract.GatewayIP+"\noptions timeout:2 attempts:1\n")
	return t, parts, nil
}

// usualFolders are empty, and programs expect them; PID 1 of linux makes them itself.
var usualFolders = []string{"/mnt", "/opt", "/srv", "/var"}

// releases are the distributions' own, by the version of their libc.
var releases = []struct{ libc, id, name, number, code string }{
	{"2.36-", "debian", "Debian GNU/Linux", "12", "bookworm"},
	{"2.41-", "debian", "Debian GNU/Linux", "13", "trixie"},
	{"2.39-0ubuntu", "ubuntu", "Ubuntu", "24.04", "noble"},
}

// osRelease says whose libraries the guest has (os-release(5)).
func osRelease(libc string) string {
	for _, r := range releases {
		if strings.HasPrefix(libc, r.libc) && strings.Contains(libc, "ubuntu") == (r.id == "ubuntu") {
			return fmt.Sprintf(
				"PRETTY_NAME=\"%s %s (%s)\"\nNAME=\"%[1]s\"\nVERSION_ID=\"%[2]s\"\nVERSION=\"%[2]s (%[3]s)\"\nVERSION_CODENAME=%[3]s\nID=%[4]s\n", r.name, r.number, r.code, r.id)
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
