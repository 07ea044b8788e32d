package project

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// Kinds of entries in a listing.
const (
	KindFolder = 'd'
	KindFile   = 'f'
	KindSame   = '=' // a file that nothing changed since the mark
	KindLink   = 'l'
	KindOther  = 'o'
)

// Limits of a listing.
const (
	maxEntries = 400_000   // files and folders
	MaxListing = 128 << 20 // bytes
	maxDepth   = 200       // folders in one another
	maxLink    = 4095      // bytes of a link's target, the most that Linux has
)

// ListScript lists the folder $1 of a machine, by GNU find. Files whose state changed behind the time $2 have all their
// properties, others only their names: each stat takes time, and each line more.
const ListScript = `date +%s.%N && exec /bin/find -P "$1" -name .git -prune -o -type d -printf 'd%i\0%P\0' ` +
	`-o -type l -printf 'l%l\0%P\0' -o -type f -newerct "@$2" -printf 'f%m %s %C@\0%P\0' ` +
	`-o -type f -printf '=\0%P\0' -o -printf 'o\0%P\0'`

// Entry is a file of a listing.
type Entry struct {
	Kind  byte
	Path  string
	Inode uint64 // of a folder
	Exec  bool   // of a KindFile, as the next ones
	Size  int64
	ctime float64
	Link  string
}

// Listing is what a folder has in a machine, as the machine says.
type Listing struct {
	Time    string // the machine's, when the listing began
	Entries []Entry
}

// errLies is the error of a listing that no honest machine makes.
var errLies = errors.New("the machine's list of files can't be right")

// ParseListing reads the output of ListScript.
func ParseListing(text []byte) (*Listing, error) {
	line, rest, ok := bytes.Cut(text, []byte("\n"))
	if _, err := strconv.ParseFloat(string(line), 64); !ok || err != nil || len(line) > 40 {
		return nil, fmt.Errorf("%w: it has no time", errLies)
	}
	l, seen := &Listing{Time: string(line)}, map[string]bool{}
	for len(rest) > 0 {
		var head, name []byte
		head, rest, ok = bytes.Cut(rest, []byte{0})
		name, rest, _ = bytes.Cut(rest, []byte{0})
		if !ok || len(head) == 0 || len(l.Entries) == maxEntries {
			return nil, fmt.Errorf("%w: it is cut, or has more than %d entries", errLies, maxEntries)
		}
		e := Entry{Kind: head[0], Path: string(name)}
		top := e.Path == ""
		if err := e.parse(string(head[1:])); err != nil {
			return nil, err
		}
		if top != (len(l.Entries) == 0) || top && e.Kind != KindFolder {
			return nil, errors.New("the project's folder is gone from the machine, or is no folder any more")
		}
		valid := top || fs.ValidPath(strings.ToValidUTF8(e.Path, "_"))
		if !valid || seen[e.Path] || strings.Count(e.Path, "/") > maxDepth || len(e.Path) > 4000 ||
			e.Kind != KindFolder && inGit(e.Path) {
			return nil, fmt.Errorf("%w: %.100q", errLies, e.Path)
		}
		seen[e.Path] = true
		l.Entries = append(l.Entries, e)
	}
	if len(l.Entries) == 0 {
		return nil, errors.New("the project's folder is gone from the machine")
	}
	return l, nil
}

func (e *Entry) parse(head string) (err error) {
	switch e.Kind {
	case KindFolder:
		e.Inode, err = strconv.ParseUint(head, 10, 64)
	case KindFile:
		f := strings.Split(head, " ")
		if len(f) != 3 {
			return fmt.Errorf("%w: %.100q", errLies, head)
		}
		mode, e1 := strconv.ParseUint(f[0], 8, 16)
		size, e2 := strconv.ParseInt(f[1], 10, 64)
		var e3 error
		e.ctime, e3 = strconv.ParseFloat(f[2], 64)
		e.Exec, e.Size, err = mode&0o100 != 0, size, errors.Join(e1, e2, e3)
		if size < 0 {
			err = errLies
		}
	case KindLink:
		if e.Link = head; len(head) > maxLink {
			err = errLies
		}
	case KindSame, KindOther:
	default:
		err = errLies
	}
	return err
}

// inGit reports whether a path leads through a git folder.
func inGit(name string) bool {
	for ; name != "."; name = path.Dir(name) {
		if path.Base(name) == GitFolder {
			return true
		}
	}
	return false
}

// grain is more than the difference between a machine's clock and the times of its files.
const grain = 20 * time.Millisecond

// before returns the listing's time, less a grain.
func (l *Listing) before() string {
	sec, frac, _ := strings.Cut(l.Time, ".")
	s, err := strconv.ParseInt(sec, 10, 62)
	ns, e := strconv.ParseInt((frac + "000000000")[:9], 10, 64)
	if err != nil {
		return "0"
	}
	if e != nil { // its date knows no nanoseconds
		s, ns = s-1, 0
	}
	at := time.Unix(s, ns).Add(-grain)
	return fmt.Sprintf("%d.%09d", at.Unix(), at.Nanosecond())
}

// seconds returns the listing's time, in the form of a file's.
func (l *Listing) seconds() float64 {
	t, _ := strconv.ParseFloat(l.Time, 64)
	return t
}

// after reports whether a time, as ListScript has it, is behind a mark.
func after(t float64, mark string) bool {
	m, err := strconv.ParseFloat(mark, 64)
	return err != nil || t > m-grain.Seconds() // float64 has some microseconds
}
