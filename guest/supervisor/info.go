package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/bounded"
)

// FileInfo describes a file, folder or link in a session's machine in detail.
type FileInfo struct {
	File                           // of the entry itself: a link is not followed
	UID, GID     int               // who owns it
	Owner, Group string            // their names in the machine, or the numbers
	Target       string            // of a link: the absolute path of what it leads to, "" if it leads nowhere
	TargetMode   fs.FileMode       // the mode of what a link leads to, 0 if nothing
	Metadata     map[string]string // extended attributes user.e2b.NAME, without that prefix; nil if none
}

// MaxMetadata bounds a file's metadata, in names.
const MaxMetadata = 64

// maxInfo bounds an entry as the machine prints it, in bytes.
const maxInfo = 2*contract.MaxPath + 128<<10

// errMalformed means that an answer of the session's program can't be read.
var errMalformed = errors.New("the machine's answer about a file can't be read")

// Info runs one of the session's own commands that answers with an entry (../init/sessionmore.h), for e's Args and
// rights.
func (c *Client) Info(ctx context.Context, e Exec) (FileInfo, error) {
	var out bytes.Buffer
	e.Stdout = &bounded.Writer{To: &out, Left: maxInfo, Err: errTooMuch}
	if err := c.Builtin(ctx, e); err != nil {
		return FileInfo{}, err
	}
	list, more := Infos(out.Bytes(), 1)
	if len(list) != 1 || more {
		return FileInfo{}, errMalformed
	}
	return list[0], nil
}

// List returns the entries of a folder, depth levels deep: most of them, in at most a number of bytes.
func (c *Client) List(ctx context.Context, root bool, name string, depth, most, bytesMost int,
) (list []FileInfo, more bool, err error) {
	var out bytes.Buffer
	err = c.Builtin(ctx, Exec{Args: []string{"entries", name, strconv.Itoa(depth)}, Root: root,
		Stdout: &bounded.Writer{To: &out, Left: int64(bytesMost), Err: errTooMuch}})
	if err != nil && !errors.Is(err, errTooMuch) {
		return nil, false, err
	}
	list, more = Infos(out.Bytes(), most)
	return list, more || err != nil, nil
}

// Infos parses entries, up to a number of them. It stops at a malformed one: more is then true.
func Infos(text []byte, most int) (list []FileInfo, more bool) {
	for len(text) > 0 {
		if len(list) == most {
			return list, true
		}
		info, rest, err := takeInfo(text)
		if err != nil {
			return list, true
		}
		list, text = append(list, info), rest
	}
	return list, false
}

// takeInfo parses the first entry. ../init/sessioninfo.c has the format.
func takeInfo(text []byte) (info FileInfo, rest []byte, err error) {
	next := func() (s string) {
		one, after, whole := bytes.Cut(text, []byte{0})
		if !whole {
			err = errMalformed
		}
		text = after
		return string(one)
	}
	head := strings.Split(next(), " ")
	if err != nil || len(head) != 9 {
		return info, nil, errMalformed
	}
	var n [9]int64
	for i, most := range [9]struct{ base, bits int }{1: {8, 13}, 2: {10, 64}, 3: {10, 64}, 4: {10, 33}, 5: {10, 33},
		7: {8, 13}, 8: {10, 8}} {
		if most.base == 0 {
			continue
		}
		if n[i], err = strconv.ParseInt(head[i], most.base, most.bits); err != nil || n[i] < 0 && i != 3 {
			return info, nil, errMalformed
		}
	}
	var known bool
	if info.Mode, known = fileMode(head[0], n[1]); !known || n[8] > MaxMetadata {
		return info, nil, errMalformed
	}
	if head[6] != "-" {
		if info.TargetMode, known = fileMode(head[6], n[7]); !known {
			return info, nil, errMalformed
		}
	}
	info.Size, info.ModTime, info.UID, info.GID = n[2], time.Unix(0, n[3]).UTC(), int(n[4]), int(n[5])
	info.Path, info.Owner, info.Group, info.Target = next(), next(), next(), next()
	for range n[8] {
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		name := next()
		info.Metadata[name] = next()
	}
	if err != nil || !path.IsAbs(info.Path) || info.Target != "" && !path.IsAbs(info.Target) {
		return info, nil, errMalformed
	}
	return info, text, nil
}

// fileMode returns the mode of a kind of file and its Unix bits.
func fileMode(kind string, bits int64) (mode fs.FileMode, known bool) {
	if len(kind) != 1 {
		return 0, false
	}
	mode, known = kinds[kind[0]]
	mode |= fs.FileMode(bits).Perm()
	for bit, is := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= is
		}
	}
	return mode, known
}

// Read writes a file's bytes from an offset on, as root or as the code's user. to may wait.
func (c *Client) Read(ctx context.Context, root bool, name string, offset int64, to io.Writer) error {
	e := Exec{Args: []string{"stream", name, fmt.Sprint(offset)}, Root: root}
	return c.flow(ctx, e, func(p []byte) error {
		_, err := to.Write(p)
		return err
	})
}

// Put makes or replaces a file in one step, with its mode and all its metadata. If from fails, the file stays as it
// was.
func (c *Client) Put(ctx context.Context, root bool, name string, from io.Reader, mode fs.FileMode,
	metadata map[string]string) (FileInfo, error) {
	args := []string{"put", name, fmt.Sprintf("%o", mode.Perm())}
	for key, value := range metadata {
		args = append(args, key, value)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	info, err := c.Info(ctx, Exec{Args: args, Root: root, Stdin: &chunks{from: from, failed: cancel}})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return info, err
}

// chunks is a reader's data as the command put reads it: its end is told from a failure.
type chunks struct {
	from   io.Reader
	failed func(error)
	over   bool
}

func (c *chunks) Read(p []byte) (int, error) {
	const head = 4
	if c.over || len(p) <= head {
		return 0, io.EOF
	}
	for {
		n, err := c.from.Read(p[head:min(len(p), head+contract.MaxChunk)])
		if n > 0 {
			p[0], p[1], p[2], p[3] = 0, byte(n>>16), byte(n>>8), byte(n)
			return head + n, nil
		}
		if err == io.EOF {
			c.over = true
			return copy(p, make([]byte, head)), nil
		}
		if err != nil {
			c.failed(err)
			return 0, err
		}
	}
}
