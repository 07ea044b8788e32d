package debug

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
)

// A Linux kernel contains a table of its symbols (CONFIG_KALLSYMS), which stripping keeps. This code reads the layout
// since Linux 6.5, as Debian 13's 6.12 has it (write_src in scripts/kallsyms.c; kallsyms_expand_symbol and
// kallsyms_sym_address in kernel/kallsyms.c). It consists of the parts below, one after another, each at a multiple of
// 8 bytes, all little-endian.
//
//	num_syms       uint32
//	names          for each symbol its number of tokens (two bytes from 128 on), and the tokens
//	markers        a uint32 for each 256th symbol: where in names it is
//	token_table    256 strings, each with a NUL behind it
//	token_index    256 uint16: where in token_table each string is
//	offsets        an int32 for each symbol, in the order of their addresses
//	relative_base  uint64, which the offsets are added to
//	seqs_of_names  3 bytes for each symbol
//
// The table's address is not recorded. The token table is found by its digits, which represent themselves. The number
// of symbols gives the size of the parts before the token table. The number is right if it is stored where those parts
// begin.
var kallsymsDigits = []byte("0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00")

const (
	maxKallsyms      = 1 << 19  // symbols: Debian's kernels have up to 200,000
	maxKallsymsName  = 512      // bytes of a name: KSYM_NAME_LEN
	maxKallsymsNames = 64 << 20 // bytes of all names
	kallsymsMarked   = 256      // symbols between two markers
)

var errNoKallsyms = errors.New("the kernel has no table of symbols (CONFIG_KALLSYMS) as Linux 6.5 and newer lay it out")

var le = binary.LittleEndian

// up rounds n up to a multiple of 8.
func up(n int) int { return (n + 7) &^ 7 }

// kallsyms reads the table of symbols in a kernel's image. It leaves out symbols of per-processor data, which are
// offsets and not addresses.
func kallsyms(image []byte) ([]elf.Symbol, error) {
	for at := 0; ; at++ {
		i := bytes.Index(image[at:], kallsymsDigits)
		if i < 0 {
			return nil, errNoKallsyms
		}
		at += i
		if tokens, table, behind, ok := kallsymsTokens(image, at); ok {
			if symbols, ok := kallsymsAround(image, table, behind, tokens); ok {
				return symbols, nil
			}
		}
	}
}

// kallsymsTokens reads the token table with its digits at an offset. The table begins at one offset, and the part
// behind its index at another.
func kallsymsTokens(image []byte, digits int) (tokens [256]string, table, behind int, ok bool) {
	next := func(at int) int { // after the string at an offset; -1 if it is too long
		end := bytes.IndexByte(image[at:min(at+maxKallsymsName, len(image))], 0)
		if end < 0 {
			return -1
		}
		return at + end + 1
	}
	end := digits
	for range 256 - '0' {
		if end = next(end); end < 0 {
			return tokens, 0, 0, false
		}
	}
	if len(image) < up(end)+2*256 {
		return tokens, 0, 0, false
	}
	index := image[up(end):]
	table = digits - int(le.Uint16(index[2*'0':]))
	if table < 0 {
		return tokens, 0, 0, false
	}
	at := table
	for i := range tokens {
		after := next(at)
		if int(le.Uint16(index[2*i:])) != at-table || after < 0 {
			return tokens, 0, 0, false
		}
		tokens[i] = string(image[at : after-1])
		at = after
	}
	return tokens, table, up(end) + 2*256, at == end
}

// kallsymsAround reads the parts before the token table and behind its index.
func kallsymsAround(image []byte, table, behind int, tokens [256]string) ([]elf.Symbol, bool) {
	before := image[:table]
	for n := 1; n <= maxKallsyms; n++ {
		marked := (n + kallsymsMarked - 1) / kallsymsMarked
		markers := len(before) - up(4*marked)
		base := behind + up(4*n)
		if markers < 0 || base+8 > len(image) {
			break
		}
		if !rising(before[markers:][:4*marked]) {
			continue
		}
		last := int(le.Uint32(before[markers+4*(marked-1):]))
		for names := (markers - last) &^ 7; names >= 8 && markers-last-names <= kallsymsMarked*maxKallsymsName; names -= 8 {
			if int(le.Uint32(before[names-8:])) != n {
				continue
			}
			symbols, ok := kallsymsNames(before[names:markers], before[markers:], tokens, n)
			if !ok {
				continue
			}
			start := le.Uint64(image[base:])
			if start == 0 {
				start = relocated(image, base)
			}
			if kallsymsAddresses(symbols, image[behind:], start) {
				return symbols, true
			}
		}
	}
	return nil, false
}

// rising reports whether these are markers: starting at 0, each greater than the one before it.
func rising(markers []byte) bool {
	if le.Uint32(markers) != 0 {
		return false
	}
	for i := 4; i < len(markers); i += 4 {
		if le.Uint32(markers[i:]) <= le.Uint32(markers[i-4:]) {
			return false
		}
	}
	return true
}

// kallsymsNames reads n names, which must fill the bytes and match the markers.
func kallsymsNames(text, markers []byte, tokens [256]string, n int) ([]elf.Symbol, bool) {
	var symbols []elf.Symbol
	at, total := 0, 0
	for i := range n {
		if i%kallsymsMarked == 0 && int(le.Uint32(markers[i/kallsymsMarked*4:])) != at {
			return nil, false
		}
		if at+2 > len(text) {
			return nil, false
		}
		length := int(text[at])
		at++
		if length >= 128 {
			length = length&127 | int(text[at])<<7
			at++
		}
		if length == 0 || at+length > len(text) {
			return nil, false
		}
		var name []byte
		for _, token := range text[at : at+length] {
			if name = append(name, tokens[token]...); len(name) > maxKallsymsName {
				return nil, false
			}
		}
		at += length
		if total += len(name); len(name) < 2 || total > maxKallsymsNames {
			return nil, false
		}
		kind := elf.STT_OBJECT // the first letter is nm's type
		if bytes.IndexByte([]byte("tTwW"), name[0]) >= 0 {
			kind = elf.STT_FUNC
		}
		symbols = append(symbols, elf.Symbol{Name: string(name[1:]), Info: elf.ST_INFO(elf.STB_GLOBAL, kind)})
	}
	return symbols, up(at) == len(text)
}

// kallsymsAddresses assigns the symbols their addresses, which must rise. With CONFIG_KALLSYMS_ABSOLUTE_PERCPU
// (amd64) a negative offset counts from the base; the others are per-processor data, which get the section
// SHN_ABS.
func kallsymsAddresses(symbols []elf.Symbol, offsets []byte, base uint64) bool {
	percpu := false
	for i := range symbols {
		percpu = percpu || le.Uint32(offsets[4*i:]) >= 1<<31
	}
	last := uint64(0)
	for i := range symbols {
		offset := le.Uint32(offsets[4*i:])
		sym := &symbols[i]
		switch {
		case !percpu:
			sym.Value = base + uint64(offset)
		case offset < 1<<31:
			sym.Value, sym.Section = uint64(offset), elf.SHN_ABS
		default:
			sym.Value = base - 1 + uint64(-int64(int32(offset)))
		}
		if sym.Value < last {
			return false
		}
		last = sym.Value
	}
	return base != 0
}

// arm64Text is the start address of arm64's Image: KIMAGE_VADDR in arch/arm64/include/asm/memory.h since
// Linux 6.5.
const arm64Text = 0xffff800080000000

// relocated returns the value that arm64's kernel writes into a field when it starts. In its file the field is 0, with
// an R_AARCH64_RELATIVE relocation for the value.
func relocated(image []byte, field int) uint64 {
	for ; len(image) >= 24; image = image[8:] {
		if le.Uint64(image) == arm64Text+uint64(field) && le.Uint64(image[8:]) == uint64(elf.R_AARCH64_RELATIVE) {
			return le.Uint64(image[16:])
		}
	}
	return 0
}
