package jail

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The files of a program: itself, the interpreter that its header names, and the libraries that both need, searched for
// like the interpreter does (ld.so(8)). Nothing is executed for this.

const loaderCache = "/etc/ld.so.cache"

// maxClosure bounds how many files a program may consist of. QEMU has some fifty.
const maxClosure = 1000

// ErrNoProgram means that a file is not an ELF program for this machine, so that its files can't be listed.
var ErrNoProgram = errors.New("not an ELF program")

// Examine lists the files of a program. plugins are files that it loads by itself, dirs are folders with its data;
// missing ones are ignored. The interpreter resolves a library's path, so links are kept.
func Examine(program string, plugins, dirs []string) (p Program, err error) {
	if p.Path, err = filepath.EvalSymlinks(program); err != nil {
		return p, fmt.Errorf("files of a program: %w", err)
	}
	c := closure{seen: map[string]bool{}, cache: map[string][]string{}}
	if data, err := os.ReadFile(loaderCache); err == nil {
		c.cache = parseCache(data)
		c.add(loaderCache)
	}
	for _, path := range append([]string{p.Path}, plugins...) {
		if _, err := c.object(path); err != nil && (path == p.Path || !errors.Is(err, fs.ErrNotExist)) {
			return p, err
		}
	}
	p.Interpreter = c.interpreter
	// glibc loads this one by itself when a thread ends.
	c.find("libgcc_s.so.1", c.objects[p.Path])
	for i := 0; i < len(c.queue); i++ {
		if _, err := c.object(c.queue[i]); err != nil && !errors.Is(err, ErrNoProgram) {
			return p, err
		}
		if len(c.files) > maxClosure {
			return p, fmt.Errorf("files of %s: more than %d", program, maxClosure)
		}
	}
	for _, dir := range dirs {
		c.data(dir, &p)
	}
	p.Files = c.files
	return p, nil
}

// data adds a folder of data, and the targets of links in it.
func (c *closure) data(dir string, p *Program) {
	entries, err := os.ReadDir(dir)
	if err != nil || slices.Contains(p.Dirs, dir) {
		return
	}
	p.Dirs = append(p.Dirs, dir)
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		to, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name()))
		if st, statErr := os.Stat(to); err == nil && statErr == nil && st.Mode().IsRegular() {
			c.add(to)
		}
	}
}

type closure struct {
	files   []string
	seen    map[string]bool
	queue   []string // objects to be looked at
	objects map[string]object
	cache   map[string][]string // by soname
	class   elf.Class
	machine elf.Machine
	// interpreter is the program's.
	interpreter string
	global      []string // RPATH of the program: it counts for what is loaded later too
}

type object struct {
	needed, paths []string
}

func (c *closure) add(path string) bool {
	if c.seen[path] {
		return false
	}
	c.seen[path] = true
	c.files = append(c.files, path)
	return true
}

// object adds one ELF file and queues the files that it needs.
func (c *closure) object(path string) (object, error) {
	if o, ok := c.objects[path]; ok {
		return o, nil
	}
	f, err := elf.Open(path)
	if err != nil {
		if format := (*elf.FormatError)(nil); errors.As(err, &format) {
			err = ErrNoProgram
		}
		return object{}, fmt.Errorf("files of %s: %w", path, err)
	}
	defer f.Close()
	if c.objects == nil {
		c.objects, c.class, c.machine = map[string]object{}, f.Class, f.Machine
	}
	if f.Class != c.class || f.Machine != c.machine {
		return object{}, fmt.Errorf("files of %s: %w", path, ErrNoProgram)
	}
	c.add(path)
	var o object
	o.needed, _ = f.ImportedLibraries() // none in a static program
	runpath, _ := f.DynString(elf.DT_RUNPATH)
	rpath, _ := f.DynString(elf.DT_RPATH)
	dir := filepath.Dir(path)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		dir = filepath.Dir(real)
	}
	expand := func(list []string) (out []string) {
		for _, text := range list {
			for _, p := range filepath.SplitList(text) {
				p = strings.NewReplacer("${ORIGIN}", dir, "$ORIGIN", dir, "${LIB}", "lib64", "$LIB", "lib64").Replace(p)
				if filepath.IsAbs(p) {
					out = append(out, filepath.Clean(p))
				}
			}
		}
		return out
	}
	o.paths = expand(runpath)
	if len(runpath) == 0 {
		o.paths = expand(rpath)
		c.global = append(c.global, o.paths...)
	}
	c.objects[path] = o
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > 4096 {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err != nil {
			return o, fmt.Errorf("files of %s: %w", path, err)
		}
		interpreter := string(bytes.TrimRight(name, "\x00"))
		if c.interpreter == "" {
			c.interpreter = interpreter
		}
		c.enqueue(interpreter)
	}
	for _, name := range o.needed {
		if !c.find(name, o) {
			return o, fmt.Errorf("files of %s: its library %s was not found", path, name)
		}
	}
	return o, nil
}

func (c *closure) enqueue(path string) {
	if c.add(path) {
		c.queue = append(c.queue, path)
	}
}

// find queues the library with a name that an object needs. It searches the object's own folders first. Next come all
// entries of the cache (the interpreter chooses by processor), then the folders that every interpreter knows.
func (c *closure) find(name string, o object) bool {
	if strings.Contains(name, "/") {
		if !fits(name, c.class, c.machine) {
			return false
		}
		c.enqueue(name)
		return true
	}
	first := func(dirs []string) bool {
		for _, dir := range dirs {
			if path := filepath.Join(dir, name); fits(path, c.class, c.machine) {
				c.enqueue(path)
				return true
			}
		}
		return false
	}
	if first(o.paths) || first(c.global) {
		return true
	}
	found := false
	for _, path := range c.cache[name] {
		if fits(path, c.class, c.machine) {
			c.enqueue(path)
			found = true
		}
	}
	return found || first(c.loaded()) || first(libraryDirs)
}

// loaded returns the folders of the files found so far, for an interpreter with other rules than glibc's.
func (c *closure) loaded() (dirs []string) {
	for _, path := range c.files {
		if dir := filepath.Dir(path); path != loaderCache && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

var libraryDirs = []string{"/lib64", "/usr/lib64", "/lib", "/usr/local/lib", "/usr/lib"}

// fits reports whether a path is an ELF file of that class and machine.
func fits(path string, class elf.Class, machine elf.Machine) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var head [20]byte
	if _, err := f.ReadAt(head[:], 0); err != nil || string(head[:4]) != elf.ELFMAG {
		return false
	}
	return elf.Class(head[elf.EI_CLASS]) == class && elf.Machine(binary.LittleEndian.Uint16(head[18:])) == machine
}

// parseCache parses glibc's ld.so.cache (elf/cache.c, "new" format) into paths by soname. It returns an empty map for
// unreadable data.
func parseCache(data []byte) map[string][]string {
	const (
		magic  = "glibc-ld.so.cache1.1"
		header = 48
		entry  = 24
	)
	out := map[string][]string{}
	// A cache may begin with one of the old format, which the new one follows, aligned.
	at := bytes.Index(data, []byte(magic))
	if at < 0 || len(data)-at < header {
		return out
	}
	data = data[at:]
	count := binary.LittleEndian.Uint32(data[len(magic):])
	text := func(offset uint32) string {
		if uint64(offset) >= uint64(len(data)) {
			return ""
		}
		end := bytes.IndexByte(data[offset:], 0)
		if end < 0 {
			return ""
		}
		return string(data[offset : int(offset)+end])
	}
	for i := range uint64(count) {
		begin := header + i*entry
		if begin+entry > uint64(len(data)) {
			break
		}
		e := data[begin:]
		name, path := text(binary.LittleEndian.Uint32(e[4:])), text(binary.LittleEndian.Uint32(e[8:]))
		if name != "" && filepath.IsAbs(path) {
			out[name] = append(out[name], path)
		}
	}
	return out
}
