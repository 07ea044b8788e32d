package tfs

import (
	"errors"
	"fmt"

	"github.com/diskfs/go-diskfs/backend"
)

// Bounds on the memory that a foreign disk can make the reader allocate.
const (
	maxLog     = 256 << 20 // bytes of tuples: some millions of files
	maxValues  = 8 << 20   // values in all
	maxDepth   = 128       // of folders
	maxLogHops = 1 << 16   // extensions
	maxNodes   = 4 << 20   // files and attributes: a tuple may be in many places
)

// errFormat is the root of every error about a disk's content.
var errFormat = errors.New("not a TFS, or damaged")

func formatError(format string, args ...any) error {
	return fmt.Errorf("read TFS: %w: %s", errFormat, fmt.Sprintf(format, args...))
}

// Read returns the filesystem that occupies size bytes of b from start on.
func Read(b backend.Storage, size, start int64) (*FileSystem, error) {
	f := &FileSystem{storage: b, start: start, sectors: size / sectorSize}
	log, err := f.readLog()
	if err != nil {
		return nil, err
	}
	d := decoder{dictionary: make([]entry, 1)}
	for _, record := range log {
		d.buf = record
		if _, err := d.value(0, true); err != nil {
			return nil, err
		}
		if len(d.buf) > 0 {
			return nil, formatError("%d bytes after a tuple", len(d.buf))
		}
	}
	if len(d.dictionary) < 2 || d.dictionary[1].tuple == nil {
		return nil, formatError("no root")
	}
	root := d.dictionary[1].tuple
	nodes := builder{sectors: f.sectors}
	if f.root, err = nodes.node("", root, 0); err != nil {
		return nil, err
	}
	for _, name := range root.order {
		v, ok := root.pairs[name]
		if !ok || name == "children" {
			continue
		}
		public, err := nodes.public(v, 0)
		if err != nil {
			return nil, err
		}
		f.params.Attributes = append(f.params.Attributes, Pair{name, public})
	}
	return f, nil
}

// cursor reads from a slice.
type cursor []byte

func (c *cursor) byte() (byte, error) {
	if len(*c) == 0 {
		return 0, formatError("it ends too early")
	}
	b := (*c)[0]
	*c = (*c)[1:]
	return b, nil
}

func (c *cursor) take(n uint64) ([]byte, error) {
	if n > uint64(len(*c)) {
		return nil, formatError("%d bytes where %d are left", n, len(*c))
	}
	b := (*c)[:n]
	*c = (*c)[n:]
	return b, nil
}

func (c *cursor) varint() (uint64, error) { return c.more(0) }

// more reads the rest of a number whose highest bits are given.
func (c *cursor) more(n uint64) (uint64, error) {
	for {
		b, err := c.byte()
		if err != nil {
			return 0, err
		}
		if n >= 1<<56 {
			return 0, formatError("a number of more than 63 bits")
		}
		n = n<<7 | uint64(b&0x7f)
		if b&0x80 == 0 {
			return n, nil
		}
	}
}

// readLog returns the complete tuples of the log.
func (f *FileSystem) readLog() ([][]byte, error) {
	var records [][]byte
	var open []byte // a tuple whose end is still to come
	var missing uint64
	total := uint64(0)
	sector, length := uint64(0), uint64(1)
	for hop := 0; ; hop++ {
		if hop > maxLogHops {
			return nil, formatError("the log has no end")
		}
		if length == 0 || sector+length > uint64(f.sectors) || length*sectorSize > maxLog {
			return nil, formatError("a log extension at sector %d of %d sectors", sector, length)
		}
		ext := make([]byte, length*sectorSize)
		if _, err := f.storage.ReadAt(ext, f.start+int64(sector)*sectorSize); err != nil {
			return nil, fmt.Errorf("read TFS: %w", err)
		}
		c := cursor(ext)
		if err := f.extensionHeader(&c, hop == 0, length); err != nil {
			return nil, err
		}
		linked := false
		for !linked {
			kind, err := c.byte()
			if err != nil {
				return nil, err
			}
			switch kind {
			case recordEnd:
				if missing > 0 {
					return nil, formatError("the log ends within a tuple")
				}
				return records, nil
			case recordSegment:
			case recordTuple, recordContinue:
				if (kind == recordContinue) != (missing > 0) {
					return nil, formatError("a segment that belongs to no tuple")
				}
				if kind == recordTuple {
					if missing, err = c.varint(); err != nil {
						return nil, err
					}
					if total += missing; total > maxLog {
						return nil, formatError("more than %d bytes of tuples", maxLog)
					}
					open = nil
				}
				n, err := c.varint()
				if err != nil {
					return nil, err
				}
				part, err := c.take(n)
				if err != nil {
					return nil, err
				}
				if n > missing {
					return nil, formatError("a segment longer than its tuple")
				}
				open, missing = append(open, part...), missing-n
				if missing == 0 {
					records = append(records, open)
				}
			case recordLink:
				if sector, err = c.varint(); err != nil {
					return nil, err
				}
				if length, err = c.varint(); err != nil {
					return nil, err
				}
				linked = true
			default:
				return nil, formatError("a record of unknown kind %d", kind)
			}
		}
	}
}

func (f *FileSystem) extensionHeader(c *cursor, first bool, length uint64) error {
	m, err := c.take(uint64(len(magic)))
	if err != nil || string(m) != magic {
		return formatError("no magic")
	}
	v, err := c.varint()
	if err != nil || v != version {
		return formatError("version %d, this knows %d", v, version)
	}
	if n, err := c.varint(); err != nil || n != length {
		return formatError("an extension of %d sectors says it has %d", length, n)
	}
	if !first {
		return nil
	}
	uuid, err := c.take(16)
	if err != nil {
		return err
	}
	copy(f.params.UUID[:], uuid)
	for range maxLabel + 1 {
		b, err := c.byte()
		if err != nil {
			return err
		}
		if b == 0 {
			return nil
		}
		f.params.Label += string([]byte{b})
	}
	return formatError("a label without an end")
}

// tuple is a tuple or vector that is being read: later records may merge into it.
type tuple struct {
	order []string
	pairs map[string]item
	list  []item
}

// item is one value.
type item struct {
	text  string
	num   int64
	tuple *tuple
	kind  byte
}

// entry is a symbol, tuple or vector of the dictionary.
type entry struct {
	symbol string
	tuple  *tuple
}

type decoder struct {
	buf        cursor
	dictionary []entry // by id; 0 means none
	values     int
}

func (d *decoder) header() (immediate bool, kind byte, n uint64, err error) {
	if d.values++; d.values > maxValues {
		return false, 0, 0, formatError("more than %d values", maxValues)
	}
	b, err := d.buf.byte()
	if err != nil {
		return false, 0, 0, err
	}
	n = uint64(b & 0x07)
	if b&0x08 != 0 {
		n, err = d.buf.more(n)
	}
	return b&0x80 != 0, b >> 4 & 0x07, n, err
}

func (d *decoder) ref(id uint64) (entry, error) {
	if id == 0 || id >= uint64(len(d.dictionary)) {
		return entry{}, formatError("id %d where %d are known", id, len(d.dictionary)-1)
	}
	return d.dictionary[id], nil
}

func (d *decoder) value(depth int, top bool) (item, error) {
	immediate, kind, n, err := d.header()
	if err != nil {
		return item{}, err
	}
	if depth > 2*maxDepth+8 {
		return item{}, formatError("tuples more than %d deep", 2*maxDepth)
	}
	if top && kind != typeTuple {
		return item{}, formatError("a record that is no tuple")
	}
	switch kind {
	case typeSymbol:
		if immediate {
			_, err := d.buf.take(n) // 0: delete; 1: the null value
			return item{kind: typeSymbol}, err
		}
		e, err := d.ref(n)
		return item{kind: typeString, text: e.symbol}, err
	case typeTuple:
		t := &tuple{pairs: map[string]item{}}
		if immediate {
			d.dictionary = append(d.dictionary, entry{tuple: t})
		} else {
			id, err := d.buf.varint()
			if err != nil {
				return item{}, err
			}
			e, err := d.ref(id)
			if err != nil {
				return item{}, err
			}
			if t = e.tuple; t == nil {
				return item{}, formatError("id %d is no tuple", id)
			}
		}
		for range n {
			if err := d.pair(t, depth); err != nil {
				return item{}, err
			}
		}
		return item{kind: typeTuple, tuple: t}, nil
	case typeVector:
		t := &tuple{}
		if immediate {
			d.dictionary = append(d.dictionary, entry{tuple: t})
		} else if _, err := d.buf.varint(); err != nil {
			return item{}, err
		}
		for range n {
			v, err := d.value(depth+1, false)
			if err != nil {
				return item{}, err
			}
			t.list = append(t.list, v)
		}
		return item{kind: typeVector, tuple: t}, nil
	case typeInteger:
		m, err := d.buf.varint()
		if n == 1 {
			return item{kind: typeInteger, num: -int64(m)}, err
		}
		return item{kind: typeInteger, num: int64(m)}, err
	case typeString:
		text, err := d.buf.take(n)
		return item{kind: typeString, text: string(text)}, err
	}
	return item{}, formatError("a value of unknown type %d", kind)
}

func (d *decoder) pair(t *tuple, depth int) error {
	immediate, kind, n, err := d.header()
	if err != nil {
		return err
	}
	if kind != typeSymbol {
		return formatError("a name of type %d", kind)
	}
	var name string
	if immediate {
		text, err := d.buf.take(n)
		if err != nil {
			return err
		}
		name = string(text)
		d.dictionary = append(d.dictionary, entry{symbol: name})
	} else {
		e, err := d.ref(n)
		if err != nil {
			return err
		}
		name = e.symbol
	}
	v, err := d.value(depth+1, false)
	if err != nil {
		return err
	}
	if t.pairs == nil {
		return formatError("a name in a vector")
	}
	if v.kind == typeSymbol {
		delete(t.pairs, name)
		return nil
	}
	if _, ok := t.pairs[name]; !ok {
		t.order = append(t.order, name)
	}
	t.pairs[name] = v
	return nil
}
