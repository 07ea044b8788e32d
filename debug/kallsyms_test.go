package debug

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// kernelTable returns a table of symbols as scripts/kallsyms.c writes it, between unrelated bytes. The base is 0 if a
// relocation provides it.
func kernelTable(symbols []elf.Symbol, base uint64, percpu bool) []byte {
	var out []byte
	align := func() { out = append(out, make([]byte, up(len(out))-len(out))...) }
	u32 := func(v uint32) { out = le.AppendUint32(out, v) }
	tokens := make([]string, 256)
	for c := '!'; c < 127; c++ {
		tokens[c] = string(c)
	}
	tokens[200], tokens[201] = "Tdo_", "sys_"
	out = append(out, bytes.Repeat([]byte("a kernel's code "), 64)...)
	u32(uint32(len(symbols)))
	align()
	begin := len(out)
	var markers []uint32
	for i, s := range symbols {
		if i%kallsymsMarked == 0 {
			markers = append(markers, uint32(len(out)-begin))
		}
		text := []byte("d" + s.Name)
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			text[0] = 'T'
		}
		for i, token := range tokens[200:202] {
			text = bytes.ReplaceAll(text, []byte(token), []byte{byte(200 + i)})
		}
		if len(text) < 128 {
			out = append(out, byte(len(text)))
		} else {
			out = append(out, byte(len(text))|128, byte(len(text)>>7))
		}
		out = append(out, text...)
	}
	align()
	for _, m := range markers {
		u32(m)
	}
	align()
	var index []byte
	for begin, i := len(out), 0; i < 256; i++ {
		index = le.AppendUint16(index, uint16(len(out)-begin))
		out = append(append(out, tokens[i]...), 0)
	}
	align()
	out = append(out, index...)
	for _, s := range symbols {
		switch {
		case s.Section == elf.SHN_ABS:
			u32(uint32(s.Value))
		case percpu:
			u32(-uint32(s.Value-base) - 1)
		default:
			u32(uint32(s.Value - symbols[0].Value))
		}
	}
	align()
	field := uint64(len(out))
	out = le.AppendUint64(out, base)
	out = append(out, bytes.Repeat([]byte{0xab}, 3*len(symbols))...)
	align()
	if base == 0 {
		for _, v := range []uint64{arm64Text + field, uint64(elf.R_AARCH64_RELATIVE), symbols[0].Value} {
			out = le.AppendUint64(out, v)
		}
	}
	return append(out, bytes.Repeat([]byte{1}, 32)...)
}

// kernelSymbols are the symbols of a table; one has a name whose length takes two bytes.
func kernelSymbols(n int, base uint64) []elf.Symbol {
	symbols := []elf.Symbol{{Name: "_text", Value: base, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC)}}
	for i := range n {
		name := fmt.Sprintf("do_sys_%d", i)
		if i == 300 {
			name = string(bytes.Repeat([]byte("long"), 50))
		}
		kind := elf.STT_FUNC
		if i > n/2 {
			kind = elf.STT_OBJECT
		}
		symbols = append(symbols, elf.Symbol{Name: name, Value: base + uint64(i)*16, Info: elf.ST_INFO(elf.STB_GLOBAL, kind)})
	}
	return symbols
}

func TestKallsyms(t *testing.T) {
	const base = 0xffffffff81000000
	for _, c := range []struct {
		name    string
		symbols []elf.Symbol
		base    uint64
		percpu  bool
	}{
		{"one symbol", kernelSymbols(0, base), base, true},
		{"a marker's worth", kernelSymbols(255, base), base, true},
		{"one more", kernelSymbols(256, base), base, true},
		{"amd64", append([]elf.Symbol{{Name: "cpu_number", Value: 0x1000, Section: elf.SHN_ABS,
			Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_OBJECT)}}, kernelSymbols(5000, base)...), base, true},
		{"arm64", kernelSymbols(5000, arm64Text+0x10000), 0, false},
		{"without percpu, no relocation", kernelSymbols(700, base), base, false},
	} {
		image := kernelTable(c.symbols, c.base, c.percpu)
		got, err := kallsyms(image)
		if err != nil || !slices.Equal(got, c.symbols) {
			t.Errorf("%s: %v, %d symbols of %d", c.name, err, len(got), len(c.symbols))
		}
	}
}

// A truncated or changed table gives an error, or symbols within the limits.
func TestKallsymsHostile(t *testing.T) {
	image := kernelTable(kernelSymbols(400, arm64Text), 0, false)
	refused := 0
	check := func(what string, image []byte) {
		symbols, err := kallsyms(image)
		if err != nil {
			refused++
		}
		if (err == nil) == (len(symbols) == 0) || len(symbols) > maxKallsyms {
			t.Fatalf("%s: %v, %d symbols", what, err, len(symbols))
		}
		for _, s := range symbols {
			if s.Name == "" || len(s.Name) >= maxKallsymsName {
				t.Fatalf("%s: a name of %d bytes", what, len(s.Name))
			}
		}
	}
	for at := 0; at < len(image); at += 3 { // odd, so that each byte of some field is hit
		if at%7 == 0 {
			check(fmt.Sprintf("cut at %d", at), image[:at])
		}
		changed := bytes.Clone(image)
		changed[at] = []byte{0, 0xff, image[at] ^ 1}[at/3%3]
		check(fmt.Sprintf("changed at %d", at), changed)
	}
	if refused == 0 {
		t.Error("no change of the table was refused")
	}
	check("digits only", bytes.Repeat(kallsymsDigits, 1000))
}

func FuzzKallsyms(f *testing.F) {
	f.Add(kernelTable(kernelSymbols(3, arm64Text), 0, false))
	f.Fuzz(func(t *testing.T, image []byte) {
		if symbols, err := kallsyms(image); (err == nil) == (len(symbols) == 0) {
			t.Errorf("%v, %d symbols", err, len(symbols))
		}
	})
}

// Without a debug package, LoadSymbols and the file for gdb take the names from an arm64 Image's own table. A debug
// package's file is used only if it belongs to exactly this kernel.
func TestLoadSymbols(t *testing.T) {
	dir := t.TempDir()
	symbols := kernelSymbols(600, arm64Text+0x10000)
	note := append(bytes.Clone(buildID), bytes.Repeat([]byte{7}, 20)...)
	kernel := append(kernelTable(symbols, 0, false), "Linux version 6.12.118+deb13-cloud-arm64 (debian-kernel"...)
	kernel = append(kernel, note...)
	copy(kernel[arm64Magic:], "ARM\x64")
	write := func(name string, data []byte) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	file := write("kernel", kernel)
	s, err := loadSymbols(file, filepath.Join(dir, "vmlinux-"))
	if err != nil || s.File != "" || s.At(arm64Text+0x10000+16*17+4) != "do_sys_17+0x4" {
		t.Fatalf("%v %+v", err, s)
	}
	made := filepath.Join(dir, "symbols")
	if err := s.WriteFile(made); err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(made)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := f.Symbols()
	if err != nil || f.Machine != elf.EM_AARCH64 || len(list) != len(symbols) {
		t.Fatalf("%v %v, %d symbols", err, f.Machine, len(list))
	}
	for i, got := range list {
		want := symbols[i]
		code := got.Section == 1 && elf.ST_TYPE(got.Info) == elf.STT_FUNC ||
			got.Section == elf.SHN_ABS && elf.ST_TYPE(got.Info) == elf.STT_OBJECT
		if got.Name != want.Name || got.Value != want.Value || !code {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
	for name, c := range map[string]struct {
		note []byte
		want bool
	}{
		"the same":       {note, true},
		"another":        {append(bytes.Clone(buildID), bytes.Repeat([]byte{8}, 20)...), false},
		"no build ID":    {[]byte("nothing"), false},
		"a cut build ID": {note[:20], false},
	} {
		debug := write("vmlinux-6.12.118+deb13-cloud-arm64", debugFile(c.note))
		s, err := loadSymbols(file, filepath.Join(dir, "vmlinux-"))
		if err != nil || (s.File == debug) != c.want || (s.At(0x5000) == "from_the_package") != c.want {
			t.Errorf("%s: %v, the file is %q", name, err, s.File)
		}
	}
	for name, data := range map[string][]byte{"empty": {}, "short": []byte("MZ"),
		"text": bytes.Repeat([]byte("text"), 100), "half an ELF file": []byte("\x7fELF\x02\x01\x01")} {
		if _, err := loadSymbols(write("other", data), ""); err == nil {
			t.Errorf("%s was taken for a kernel", name)
		}
	}
}

// debugFile returns an ELF file with a note and a symbol.
func debugFile(note []byte) []byte {
	names := []byte("\x00from_the_package\x00")
	var out bytes.Buffer
	at := uint64(64 + 4*64)
	for _, part := range []any{
		elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_EXEC),
			Machine: uint16(elf.EM_AARCH64), Version: 1, Shoff: 64, Ehsize: 64, Shentsize: 64, Shnum: 4, Shstrndx: 3},
		elf.Section64{},
		elf.Section64{Type: uint32(elf.SHT_NOTE), Off: at, Size: uint64(len(note))},
		elf.Section64{Type: uint32(elf.SHT_SYMTAB), Off: at + uint64(len(note)), Size: 48, Link: 3, Entsize: 24},
		elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: at + uint64(len(note)) + 48, Size: uint64(len(names))},
		note, elf.Sym64{}, elf.Sym64{Name: 1, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), Shndx: 1, Value: 0x5000},
		names,
	} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	return out.Bytes()
}
