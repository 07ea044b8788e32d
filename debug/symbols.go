package debug

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
)

// Symbols are a kernel's names for addresses, and its text.
type Symbols struct {
	// Stripped says that the file has no symbols; EntrySymbol is always there.
	Stripped bool

	byAddress []elf.Symbol
	byName    map[string]uint64
	text      []segment
	slide     uint64 // how far the kernel has moved itself (Locate)
}

// EntrySymbol names the address where the kernel's file says that it begins.
const EntrySymbol = "entry"

// segment is executable memory, as the file has it.
type segment struct {
	at   uint64
	data []byte
}

// maxText bounds a kernel's executable memory.
const maxText = 256 << 20

// LoadSymbols reads a kernel's ELF file.
func LoadSymbols(file string) (*Symbols, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := &Symbols{byName: map[string]uint64{}}
	list, err := f.Symbols()
	if s.Stripped = errors.Is(err, elf.ErrNoSymbols); err != nil && !s.Stripped {
		return nil, err
	}
	for _, sym := range append(list, elf.Symbol{Name: EntrySymbol, Value: f.Entry}) {
		if sym.Name == "" || elf.ST_TYPE(sym.Info) == elf.STT_SECTION || elf.ST_TYPE(sym.Info) == elf.STT_FILE || sym.Section == elf.SHN_ABS {
			continue
		}
		if _, ok := s.byName[sym.Name]; ok && sym.Name == EntrySymbol {
			continue
		}
		s.byName[sym.Name] = sym.Value
		if sym.Name != EntrySymbol {
			s.byAddress = append(s.byAddress, sym)
		}
	}
	sort.SliceStable(s.byAddress, func(i, j int) bool { return s.byAddress[i].Value < s.byAddress[j].Value })
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_X == 0 || p.Filesz > maxText {
			continue
		}
		data, err := io.ReadAll(p.Open())
		if err != nil {
			return nil, err
		}
		s.text = append(s.text, segment{p.Vaddr, data})
	}
	return s, nil
}

// page is the least distance that a kernel moves itself by.
const page = 4096

// Locate finds out how far a kernel has moved itself (address randomisation), from the
// page of memory that it runs in: the one page of the file that has most of its bytes, if
// that is nine of ten. Relocations and patches change the others.
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
				continue // cheap, and wrong only where both ends were relocated
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
	if best*10 < len(memory)*9 {
		return false
	}
	s.slide = at - where
	return true
}

// maxOffset: an address further behind a symbol than this is not said to be in it.
const maxOffset = 1 << 20

// At names an address as symbol+offset, "" where no symbol is near.
func (s *Symbols) At(address uint64) string {
	if s == nil {
		return ""
	}
	for _, a := range []uint64{address - s.slide, address} { // before it moves, it runs where the file says
		i := sort.Search(len(s.byAddress), func(i int) bool { return s.byAddress[i].Value > a })
		if i == 0 || a-s.byAddress[i-1].Value > maxOffset {
			continue
		}
		sym := s.byAddress[i-1]
		if a == sym.Value {
			return sym.Name
		}
		return fmt.Sprintf("%s+%#x", sym.Name, a-sym.Value)
	}
	return ""
}

// Address reads an address: a number (0x… or decimal), a symbol, or symbol+offset.
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
