package tfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

// Record kinds of the log.
const (
	recordEnd      = 1
	recordTuple    = 2
	recordContinue = 3
	recordSegment  = 4
	recordLink     = 5
)

// Value types.
const (
	typeSymbol  = 0
	typeTuple   = 1
	typeVector  = 2
	typeInteger = 3
	typeString  = 4
)

func appendVarint(b []byte, n uint64) []byte {
	shift := 0
	for n>>shift >= 1<<7 {
		shift += 7
	}
	for ; shift > 0; shift -= 7 {
		b = append(b, 0x80|byte(n>>shift)&0x7f)
	}
	return append(b, byte(n)&0x7f)
}

// appendHeader appends a value's first byte and the rest of its number.
func appendHeader(b []byte, immediate bool, kind byte, n uint64) []byte {
	first := kind << 4
	if immediate {
		first |= 0x80
	}
	shift := 0
	for n>>shift >= 1<<3 {
		shift += 7
	}
	first |= byte(n >> shift)
	if shift > 0 {
		first |= 0x08
	}
	b = append(b, first)
	for shift > 0 {
		shift -= 7
		part := byte(n>>shift) & 0x7f
		if shift > 0 {
			part |= 0x80
		}
		b = append(b, part)
	}
	return b
}

// encoder writes values with one dictionary.
type encoder struct {
	buf     []byte
	symbols map[string]uint64
	next    uint64 // the next id
}

func (e *encoder) symbol(name string) {
	if id, ok := e.symbols[name]; ok {
		e.buf = appendHeader(e.buf, false, typeSymbol, id)
		return
	}
	e.symbols[name] = e.id()
	e.buf = appendHeader(e.buf, true, typeSymbol, uint64(len(name)))
	e.buf = append(e.buf, name...)
}

func (e *encoder) id() uint64 {
	e.next++
	return e.next - 1
}

func (e *encoder) value(v Value) error {
	switch v := v.(type) {
	case string:
		e.buf = appendHeader(e.buf, true, typeString, uint64(len(v)))
		e.buf = append(e.buf, v...)
	case int64:
		sign, magnitude := uint64(0), uint64(v)
		if v < 0 {
			sign, magnitude = 1, uint64(-v)
		}
		e.buf = appendVarint(appendHeader(e.buf, true, typeInteger, sign), magnitude)
	case Tuple:
		e.id()
		e.buf = appendHeader(e.buf, true, typeTuple, uint64(len(v)))
		for _, p := range v {
			if p.Name == "" {
				return errors.New("a tuple's name is empty")
			}
			e.symbol(p.Name)
			if err := e.value(p.Value); err != nil {
				return err
			}
		}
	case []Value:
		e.id()
		e.buf = appendHeader(e.buf, true, typeVector, uint64(len(v)))
		for _, x := range v {
			if err := e.value(x); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("a tuple can't hold a %T", v)
	}
	return nil
}

// tuple converts a node to its form in the log.
func (n *node) tuple() Tuple {
	switch n.mode {
	case fs.ModeDir:
		children := Tuple{}
		for _, c := range n.sorted() {
			children = append(children, Pair{c.name, c.tuple()})
		}
		return Tuple{{"children", children}}
	case fs.ModeSymlink:
		return Tuple{{"linktarget", n.target}}
	}
	extents := Tuple{}
	for _, e := range n.extents {
		extents = append(extents, Pair{strconv.FormatInt(e.file, 10),
			Tuple{{"length", e.length}, {"allocated", e.length}, {"offset", e.sector}}})
	}
	return Tuple{{"extents", extents}, {"filelength", n.size}}
}

// Close writes the log, which completes the filesystem; the disk stays open. Calling it again does nothing.
func (f *FileSystem) Close() error {
	if f.w == nil || f.closed {
		return nil
	}
	f.closed = true
	e := encoder{symbols: map[string]uint64{}, next: 1}
	if err := e.value(append(f.root.tuple(), f.params.Attributes...)); err != nil {
		return fmt.Errorf("write TFS: %w", err)
	}
	if err := f.writeLog(e.buf); err != nil {
		return fmt.Errorf("write TFS: %w", err)
	}
	return nil
}

// linkSize is the maximum size of a link and the end record after it.
const linkSize = 21

// writeLog writes the encoded root tuple as one record: into the extension that is reserved before the data, and the
// rest after the data.
func (f *FileSystem) writeLog(tuple []byte) error {
	first := appendVarint(appendVarint([]byte(magic), version), 1)
	first = append(first, f.params.UUID[:]...)
	first = append(append(first, f.params.Label...), 0)
	if err := f.writeExtension(0, 1, appendLink(first, 1)); err != nil {
		return err
	}
	at := int64(1)
	for rest := tuple; ; {
		ext := appendVarint(appendVarint([]byte(magic), version), logSectors)
		kind := byte(recordContinue)
		var head []byte
		if len(rest) == len(tuple) {
			kind, head = recordTuple, appendVarint(nil, uint64(len(tuple)))
		}
		const lengthSize = 10 // the maximum size of a varint
		room := logSectors*sectorSize - len(ext) - 1 - len(head) - lengthSize - linkSize
		n := min(len(rest), room)
		ext = append(append(ext, kind), head...)
		ext = append(appendVarint(ext, uint64(n)), rest[:n]...)
		if rest = rest[n:]; len(rest) == 0 {
			return f.writeExtension(at, logSectors, append(ext, recordEnd))
		}
		next := f.next
		f.next += logSectors
		if err := f.writeExtension(at, logSectors, appendLink(ext, next)); err != nil {
			return err
		}
		at = next
	}
}

// appendLink appends a link to an extension of the default length.
func appendLink(b []byte, sector int64) []byte {
	b = append(b, recordLink)
	b = appendVarint(appendVarint(b, uint64(sector)), logSectors)
	return append(b, recordEnd)
}

func (f *FileSystem) writeExtension(sector, length int64, text []byte) error {
	if sector+length > f.sectors {
		return errors.New("the filesystem is full")
	}
	// Pad to the end of a sector, so that the same input gives the same bytes.
	full := make([]byte, (len(text)+sectorSize-1)/sectorSize*sectorSize)
	copy(full, text)
	_, err := f.w.WriteAt(full, f.start+sector*sectorSize)
	return err
}
