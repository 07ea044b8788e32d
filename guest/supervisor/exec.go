package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
)

// Exec describes a command to start.
type Exec struct {
	Args []string // the program, searched in PATH, and its arguments
	Env  []string // NAME=VALUE each
	Dir  string   // absolute; "" is contract.WorkDir
	// Root runs it as the machine's root. The client must have MayRoot.
	Root bool
	// PID, if not nil, receives the number of its process in the machine once it runs, before any output. It must not
	// block.
	PID func(cmd *Command, pid int)
	// Terminal gives the command a terminal of that size instead of its streams.
	Terminal *guest.Size
	// Stdin may be nil, which means end of file at once.
	Stdin io.Reader
	// Use, if not nil, is called around data that is sent to it after its start. The machine must run until done is
	// called.
	Use func() (done func(), err error)
	// Stdout and Stderr receive its output; they must not block.
	Stdout, Stderr io.Writer

	reply   io.Writer // receives its descriptor 3, if not nil
	builtin bool
}

func execFrame(e Exec, mayRoot bool) ([]byte, error) {
	var flags byte
	var size guest.Size
	if e.Terminal != nil {
		flags, size = flags|contract.ExecTerminal, *e.Terminal
	}
	if e.reply != nil {
		flags |= contract.ExecControl
	}
	if e.builtin {
		flags |= contract.ExecBuiltin
	}
	if e.Root {
		flags |= contract.ExecRoot
	}
	if mayRoot {
		flags |= contract.ExecMayRoot
	}
	if e.PID != nil {
		flags |= contract.ExecTellPID
	}
	p := binary.BigEndian.AppendUint16([]byte{flags}, size.Columns)
	p = binary.BigEndian.AppendUint16(p, size.Rows)
	if e.Root && !mayRoot {
		return nil, errors.New("a command as root in a session without it")
	}
	if len(e.Args) == 0 || e.Args[0] == "" {
		return nil, errors.New("a command without a name")
	}
	for _, list := range [][]string{e.Args, e.Env} {
		if len(list) > contract.MaxListed {
			return nil, fmt.Errorf("%d arguments or variables; %d is the most", len(list), contract.MaxListed)
		}
		p = binary.BigEndian.AppendUint16(p, uint16(len(list)))
	}
	for _, s := range slices.Concat([]string{e.Dir}, e.Args, e.Env) {
		if strings.ContainsRune(s, 0) {
			return nil, fmt.Errorf("%.80q holds a NUL byte", s)
		}
		p = append(append(p, s...), 0)
	}
	if len(p) >= contract.MaxStep {
		return nil, fmt.Errorf("its arguments and variables take %d bytes; %d is the most: standard input takes more", len(p),
			contract.MaxStep)
	}
	return p, nil
}
