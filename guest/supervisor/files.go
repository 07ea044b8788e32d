package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/bounded"
)

// errTooMuch ends a command that prints more than requested.
var errTooMuch = errors.New("it gives more than was asked for")

// File runs one of the session's own commands about files (../init/sessionfiles.c): a verb, a path and further
// arguments. most is the maximum number of bytes of output. Errors of the files are syscall.Errno.
func (c *Client) File(ctx context.Context, content io.Reader, most int, args ...string) ([]byte, error) {
	var out bytes.Buffer
	if err := c.FileTo(ctx, content, &bounded.Writer{To: &out, Left: int64(most), Err: errTooMuch}, args...); err != nil &&
		!errors.Is(err, errTooMuch) {
		return nil, err
	}
	return out.Bytes(), nil
}

// FileTo is like File, but writes the output to out as it arrives.
func (c *Client) FileTo(ctx context.Context, content io.Reader, out io.Writer, args ...string) error {
	return c.Builtin(ctx, Exec{Args: args, Stdin: content, Stdout: out})
}

// Builtin runs one of the session's own commands.
func (c *Client) Builtin(ctx context.Context, e Exec) error {
	e.Dir, e.builtin = "/", true
	cmd, err := c.Start(ctx, e)
	if err != nil {
		return err
	}
	end, err := cmd.Wait(ctx)
	if err != nil {
		return err
	}
	return failure(end)
}

// failure returns the error of one of the session's own commands that has ended.
func failure(end guest.End) error {
	switch {
	case end.Signal != 0:
		return fmt.Errorf("it was ended by signal %d", end.Signal)
	case end.Code != 0:
		return syscall.Errno(end.Code)
	}
	return nil
}

// File is a file, folder or other entry in a session's machine.
type File struct {
	Path    string      `json:"path"` // absolute
	Mode    fs.FileMode `json:"mode"` // with its kind
	Size    int64       `json:"size"`
	ModTime time.Time   `json:"modified"`
}

var kinds = map[byte]fs.FileMode{
	contract.KindFile: 0, contract.KindDir: fs.ModeDir, contract.KindLink: fs.ModeSymlink,
	contract.KindPipe:   fs.ModeNamedPipe,
	contract.KindSocket: fs.ModeSocket, contract.KindOther: fs.ModeIrregular,
}

// Entries parses the output of the command list, up to a number of entries. Malformed entries are left out.
func Entries(text []byte, most int) (list []File, more bool) {
	for len(text) > 0 {
		one, rest, whole := bytes.Cut(text, []byte{0})
		text = rest
		if !whole || len(list) == most {
			return list, true
		}
		f := strings.SplitN(string(one), " ", 5)
		if len(f) != 5 || len(f[0]) != 1 {
			continue
		}
		kind, known := kinds[f[0][0]]
		mode, err1 := strconv.ParseUint(f[1], 8, 12)
		size, err2 := strconv.ParseInt(f[2], 10, 64)
		at, err3 := strconv.ParseInt(f[3], 10, 64)
		if known && errors.Join(err1, err2, err3) == nil {
			list = append(list, File{Path: f[4], Mode: kind | fs.FileMode(mode), Size: size, ModTime: time.Unix(0, at).UTC()})
		}
	}
	return list, false
}
