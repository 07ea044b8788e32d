package debug

import (
	"bytes"
	"crypto/sha1"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// Symbols are a kernel's names for addresses, and its executable memory.
type Symbols struct {
	// File is an ELF file with the symbols; "" if there is no such file (WriteFile).
	File string

	machine   elf.Machine
	frameless bool // the code keeps no frame pointers
	byAddress []elf.Symbol
	byName    map[string]uint64
	text      []segment
	slide     uint64 // how far the kernel has moved itself (Locate)
}

// EntrySymbol names the entry address in the kernel's ELF file.
const EntrySymbol = "entry"

// segment is executable memory, as in the file.
type segment struct {
	at   uint64
	data []byte
}

// maxText bounds a kernel's executable memory.
const maxText = 256 << 20

// maxKernel bounds a kernel's file.
const maxKernel = 512 << 20

// debugFiles is the path, up to the release, of the symbols in Debian's debug packages for kernels.
const debugFiles = "/usr/lib/debug/boot/vmlinux-"

// LoadSymbols reads a kernel's symbols from its ELF file. If that has none, or the file is not an ELF file, it uses the
// kernel's debug package. If that is not installed, it uses the table that linux contains.
func LoadSymbols(file string) (*Symbols, error) { return loadSymbols(file, debugFiles) }

func loadSymbols(file, debugFiles string) (*Symbols, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxKernel {
		return nil, fmt.Errorf("%s: %d bytes; a kernel has %d at most", file, st.Size(), maxKernel)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &Symbols{byName: map[string]uint64{}}
	var list []elf.Symbol
	f, err := elf.NewFile(bytes.NewReader(data))
	if err == nil {
		s.byName[EntrySymbol] = f.Entry
		s.machine = f.Machine
		if list, err = f.Symbols(); err == nil {
			s.File = file
		} else if !errors.Is(err, elf.ErrNoSymbols) {
			return nil, err
		}
		for _, p := range f.Progs {
			if p.Type != elf.PT_LOAD || p.Flags&elf.PF_X == 0 || p.Filesz > maxText {
				continue
			}
			text, err := io.ReadAll(p.Open())
			if err != nil {
				return nil, err
			}
			s.text = append(s.text, segment{p.Vaddr, text})
		}
	} else if bytes.HasPrefix(data[min(arm64Magic, len(data)):], []byte("ARM\x64")) {
		s.machine = elf.EM_AARCH64
		s.text = []segment{{arm64Text, data}}
	} else {
		return nil, fmt.Errorf("%s: neither an ELF file nor an Image of arm64's linux: %w", file, err)
	}
	if s.File == "" {
		if s.File, list = installed(data, debugFiles); s.File == "" {
			list, _ = kallsyms(data) // without one, the addresses have no names
		}
		s.frameless = s.machine == elf.EM_X86_64 // Debian's, CONFIG_UNWINDER_ORC
	}
	s.add(list)
	return s, nil
}

// arm64Magic is the offset of the magic number in an Image of arm64 (Linux, Documentation/arm64/booting.rst).
const arm64Magic = 56

// add adds symbols.
func (s *Symbols) add(list []elf.Symbol) {
	for _, sym := range list {
		// arm64's ELF files mark code and data by $x and $d.
		if sym.Name == "" || sym.Name[0] == '$' || elf.ST_TYPE(sym.Info) == elf.STT_SECTION ||
			elf.ST_TYPE(sym.Info) == elf.STT_FILE || sym.Section == elf.SHN_ABS {
			continue
		}
		s.byName[sym.Name] = sym.Value
		s.byAddress = append(s.byAddress, sym)
	}
	sort.SliceStable(s.byAddress, func(i, j int) bool { return s.byAddress[i].Value < s.byAddress[j].Value })
}

// release matches the version that a linux kernel prints.
var release = regexp.MustCompile(`Linux version ([0-9][-+.~_a-zA-Z0-9]{0,63}) \(`)

// installed returns a debug package's file and symbols for a kernel's image, if the file has the image's build
// ID.
func installed(image []byte, debugFiles string) (string, []elf.Symbol) {
	m := release.FindSubmatch(image)
	if m == nil {
		return "", nil
	}
	name := debugFiles + string(m[1])
	f, err := elf.Open(name)
	if err != nil {
		return "", nil
	}
	defer f.Close()
	for _, section := range f.Sections {
		if section.Type != elf.SHT_NOTE || section.Size > page {
			continue
		}
		notes, err := section.Data()
		at := bytes.Index(notes, buildID)
		if err != nil || at < 0 || len(notes) < at+len(buildID)+sha1.Size ||
			!bytes.Contains(image, notes[at:at+len(buildID)+sha1.Size]) {
			continue
		}
		if list, err := f.Symbols(); err == nil {
			return name, list
		}
	}
	return "", nil
}

// buildID begins the ELF note with a file's build ID, a SHA-1.
var buildID = []byte("\x04\x00\x00\x00\x14\x00\x00\x00\x03\x00\x00\x00GNU\x00")

// page is the smallest distance by which a kernel moves itself.
const page = 4096

// Locate finds out how far a kernel has moved itself (address randomisation) from a page of memory that it
// executes. It searches the page of the file with the most equal bytes; nine of ten must be equal. Relocations
// and patches change the others.
func (s *Symbols) Locate(at uint64, memory []byte) bool {
	if s == nil || len(memory) == 0 {
		return false
	}
	at &^= page - 1
	best, where := 0, uint64(0)
	for _, seg := range s.text {
		for off := 0; off+len(memory) <= len(seg.data); off += page {
			part := seg.data[off : off+len(memory)]
			if !bytes.Equal(part[:16], memory[:16]) && !bytes.Equal(part[len(part)-16:], memory[len(part)-16:]) {
				continue // cheap, and wrong only if both ends were relocated
			}
			same := 0
			for i := range part {
				if part[i] == memory[i] {
					same++
				}
			}
			if same > best {
				best, where = same, seg.at+uint64(off)
			}
		}
	}
	if best*10 < len(memory)*9 || where>>63 > at>>63 {
		return false // in the last case it runs at a low address until it has set up its pages
	}
	s.slide = at - where
	return true
}

// maxOffset bounds the distance of an address from its symbol.
const maxOffset = 1 << 20

// At names an address as symbol+offset, "" if no symbol is near.
func (s *Symbols) At(address uint64) string {
	sym, offset, ok := s.find(address)
	switch {
	case !ok:
		return ""
	case offset == 0:
		return sym.Name
	}
	return fmt.Sprintf("%s+%#x", sym.Name, offset)
}

// Returns reports whether a call may return to an address, because the address is within a function.
func (s *Symbols) Returns(address uint64) bool {
	sym, offset, ok := s.find(address)
	return ok && offset > 0 && elf.ST_TYPE(sym.Info) == elf.STT_FUNC
}

// Frameless reports whether the kernel's code keeps no frame pointers.
func (s *Symbols) Frameless() bool { return s != nil && s.frameless }

// find returns the symbol at or before an address.
func (s *Symbols) find(address uint64) (sym elf.Symbol, offset uint64, ok bool) {
	if s == nil {
		return sym, 0, false
	}
	for _, a := range []uint64{address - s.slide, address} { // before it moves, it runs where the file says
		i := sort.Search(len(s.byAddress), func(i int) bool { return s.byAddress[i].Value > a })
		if i == 0 || a-s.byAddress[i-1].Value > maxOffset {
			continue
		}
		for i > 1 && s.byAddress[i-2].Value == s.byAddress[i-1].Value {
			i-- // linux has the best name first
		}
		return s.byAddress[i-1], a - s.byAddress[i-1].Value, true
	}
	return sym, 0, false
}

// Address parses an address: a number (0x… or decimal), a symbol, or symbol+offset.
func (s *Symbols) Address(text string) (uint64, error) {
	name, plus, _ := strings.Cut(text, "+")
	offset := uint64(0)
	var err error
	if plus != "" {
		if offset, err = strconv.ParseUint(plus, 0, 64); err != nil {
			return 0, fmt.Errorf("%q: the offset is not a number", text)
		}
	}
	if n, err := strconv.ParseUint(name, 0, 64); err == nil {
		return n + offset, nil
	}
	if s == nil {
		return 0, fmt.Errorf("%q is not an address, and the kernel's symbols are not known", text)
	}
	at, ok := s.byName[name]
	if !ok {
		return 0, fmt.Errorf("%q is neither an address nor a symbol of the kernel", text)
	}
	if name == EntrySymbol { // a physical address, in linux's file
		return at + offset, nil
	}
	return at + s.slide + offset, nil
}

// Empty reports whether no symbols were found.
func (s *Symbols) Empty() bool { return s == nil || len(s.byAddress) == 0 }

// symbolSections are the sections of WriteFile's file.
var symbolSections = []string{"", ".text", ".symtab", ".strtab"}

// WriteFile writes the symbols as an ELF file for gdb: names for addresses, and no code.
func (s *Symbols) WriteFile(file string) error {
	const (
		headerSize, sectionSize, symbolSize = 64, 64, 24
		text, symtab, strtab                = 1, 2, 3
	)
	names := []byte{0}
	add := func(name string) uint32 {
		at := len(names)
		names = append(append(names, name...), 0)
		return uint32(at)
	}
	sections := make([]elf.Section64, len(symbolSections))
	for i, name := range symbolSections {
		sections[i].Name = add(name)
	}
	list := make([]elf.Sym64, 1, 1+len(s.byAddress))
	begin, end := ^uint64(0), uint64(0)
	for _, sym := range s.byAddress {
		entry := elf.Sym64{Name: add(sym.Name), Info: sym.Info, Shndx: uint16(elf.SHN_ABS), Value: sym.Value}
		if elf.ST_TYPE(sym.Info) == elf.STT_FUNC {
			entry.Shndx = text
			begin, end = min(begin, sym.Value), max(end, sym.Value+1)
		}
		list = append(list, entry)
	}
	if begin > end {
		begin = end
	}
	// The names follow the symbols, and include the sections' names.
	at := uint64(headerSize + len(sections)*sectionSize)
	sections[text].Type, sections[text].Flags = uint32(elf.SHT_NOBITS), uint64(elf.SHF_ALLOC|elf.SHF_EXECINSTR)
	sections[text].Addr, sections[text].Size, sections[text].Off, sections[text].Addralign = begin, end-begin, at, 1
	sections[symtab].Type, sections[symtab].Off, sections[symtab].Size = uint32(elf.SHT_SYMTAB), at,
		uint64(len(list)*symbolSize)
	sections[symtab].Link, sections[symtab].Info, sections[symtab].Entsize, sections[symtab].Addralign = strtab, 1,
		symbolSize, 8
	sections[strtab].Type, sections[strtab].Off, sections[strtab].Size = uint32(elf.SHT_STRTAB), at+sections[symtab].Size,
		uint64(len(names))
	sections[strtab].Addralign = 1
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(s.machine), Version: uint32(elf.EV_CURRENT),
		Shoff: headerSize, Ehsize: headerSize, Shentsize: sectionSize, Shnum: uint16(len(sections)), Shstrndx: strtab,
	}
	var out bytes.Buffer
	for _, part := range []any{header, sections, list, names} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	return os.WriteFile(file, out.Bytes(), 0o600)
}
