package vmm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Access is the level of access that a relay grants to a machine.
type Access string

const (
	AccessRead   Access = "read"   // QMP's query-* and HMP's info: changes nothing
	AccessMemory Access = "memory" // and reading the guest's memory
	AccessWrite  Access = "write"  // everything
)

// Relay serves a subset of a machine's QMP commands to other processes, through the machine's monitor. Any QMP client
// can use it. It adds three commands:
//
//	{"execute": "unitask-access", "arguments": {"access": "write"}}
//
// asks for more than AccessRead, with which a connection begins; Grant decides.
//
//	{"execute": "unitask-release"}
//
// ends a machine that is kept after a crash. Any peer may do so: it belongs to the same user.
//
//	{"execute": "unitask-connections"}
//
// returns the guest's open connections to the outside.
type Relay struct {
	// Monitor returns the machine's current monitor.
	Monitor func() *Monitor
	// Grant decides whether a connection may have this access. Its error is sent to the client.
	Grant func(Access, json.RawMessage) error
	// Release ends a machine that is kept after a crash; nil if there is none.
	Release func() error
	// Connections returns the guest's connections to the outside as JSON; nil if they are not known.
	Connections func() json.RawMessage
}

// Bounds on a relay's connection.
const (
	maxRelayLine  = 1 << 20          // bytes of a command
	relayCommand  = 10 * time.Minute // dump-guest-memory takes as long as its reader
	relayPatience = 5 * time.Second  // for a client that does not read
)

// relayed is one connection.
type relayed struct {
	*Relay
	monitor *Monitor
	conn    *net.UnixConn
	access  Access
	writing sync.Mutex
}

// Serve serves one client until the client or QEMU disconnects, or ctx ends. It closes conn.
func (r *Relay) Serve(ctx context.Context, conn *net.UnixConn) error {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	monitor := r.Monitor()
	if err := monitor.ConnectContext(ctx); err != nil {
		return err
	}
	c := &relayed{Relay: r, monitor: monitor, conn: conn, access: AccessRead}
	greeting := map[string]any{"QMP": map[string]any{"version": monitor.version, "capabilities": []string{}}}
	if err := c.send(greeting); err != nil {
		return err
	}
	events, err := monitor.Events(ctx)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		for e := range events {
			if c.send(e) != nil {
				cancel()
			}
		}
		conn.Close() // QEMU has gone, or Serve returns
	})
	return c.serve(ctx)
}

// send writes one message.
func (c *relayed) send(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(relayPatience))
	_, err = c.conn.Write(append(text, '\r', '\n'))
	return err
}

// serve executes commands one after the other, as QEMU does.
func (c *relayed) serve(ctx context.Context) error {
	in := &rightsReader{conn: c.conn}
	defer in.drop()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxRelayLine)
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		var cmd struct {
			Execute   string          `json:"execute"`
			Arguments json.RawMessage `json:"arguments"`
			ID        json.RawMessage `json:"id,omitempty"`
		}
		reply := map[string]any{}
		if err := json.Unmarshal(lines.Bytes(), &cmd); err != nil || cmd.Execute == "" {
			err = errors.New("not a QMP command: send {\"execute\": NAME, \"arguments\": {…}}")
			reply["error"] = failure(err)
		} else if result, err := c.execute(ctx, in, cmd.Execute, cmd.Arguments); err != nil {
			reply["error"] = failure(err)
		} else {
			reply["return"] = result
		}
		if cmd.ID != nil {
			reply["id"] = cmd.ID
		}
		if err := c.send(reply); err != nil {
			return err
		}
	}
	return lines.Err()
}

func failure(err error) map[string]string {
	var refused *CommandError
	if errors.As(err, &refused) {
		return map[string]string{"class": refused.Class, "desc": refused.Desc}
	}
	return map[string]string{"class": "GenericError", "desc": err.Error()}
}

// execute runs one command.
func (c *relayed) execute(ctx context.Context, in *rightsReader, name string, args json.RawMessage) (json.RawMessage,
	error) {
	empty := json.RawMessage("{}")
	switch name {
	case "qmp_capabilities":
		return empty, nil
	case "unitask-access":
		var want struct {
			Access Access `json:"access"`
		}
		if err := json.Unmarshal(args, &want); err != nil {
			return nil, fmt.Errorf("unitask-access: %w", err)
		}
		switch want.Access {
		case AccessRead, AccessMemory, AccessWrite:
		default:
			return nil, fmt.Errorf("unitask-access %q: use read, memory or write", want.Access)
		}
		if want.Access != AccessRead {
			if err := c.Grant(want.Access, args); err != nil {
				return nil, err
			}
		}
		c.access = want.Access
		return empty, nil
	case "unitask-release":
		if c.Release == nil {
			return nil, errors.New("unitask-release: this machine was not kept after a crash")
		}
		return empty, c.Release()
	case "unitask-connections":
		if c.Connections == nil {
			return nil, errors.New("unitask-connections: this machine's network is not known here")
		}
		return c.Connections(), nil
	}
	if err := c.access.allows(name, args); err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, relayCommand)
	defer cancel()
	if name == "getfd" {
		return empty, c.getfd(timed, in, args)
	}
	var result json.RawMessage
	var arguments any
	if len(args) > 0 {
		arguments = args
	}
	err := c.monitor.Do(timed, name, arguments, &result)
	return result, err
}

// getfd passes on the descriptor that was sent with the command.
func (c *relayed) getfd(ctx context.Context, in *rightsReader, args json.RawMessage) error {
	f := in.take()
	if f == nil {
		return errors.New("getfd: no descriptor came with it")
	}
	defer f.Close()
	var named struct {
		Name string `json:"fdname"`
	}
	if err := json.Unmarshal(args, &named); err != nil {
		return err
	}
	return c.monitor.SendFile(ctx, named.Name, f)
}

// readsMemory are the HMP commands that show the guest's memory.
var readsMemory = []string{"x", "xp", "gva2gpa", "gpa2hva"}

// allows returns the reason for refusing a command at this access, or nil.
func (a Access) allows(name string, args json.RawMessage) error {
	if a == AccessWrite || strings.HasPrefix(name, "query-") || name == "qom-list" || name == "qom-get" ||
		name == "qom-list-types" || name == "qom-list-properties" || name == "device-list-properties" {
		return nil
	}
	more := fmt.Errorf("%s changes the machine, and this console is read-only: attach with --write", name)
	memory := a == AccessMemory
	switch name {
	case "getfd", "dump-guest-memory":
		if memory {
			return nil
		}
		return fmt.Errorf("%s reads the guest's memory: attach with --memory", name)
	case "human-monitor-command":
		var hmp struct {
			Line string `json:"command-line"`
		}
		if err := json.Unmarshal(args, &hmp); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		verb, _, _ := strings.Cut(strings.TrimSpace(hmp.Line), " ")
		verb, _, _ = strings.Cut(verb, "/")
		if verb == "info" {
			return nil
		}
		for _, reads := range readsMemory {
			if verb != reads {
				continue
			}
			if memory {
				return nil
			}
			return fmt.Errorf("hmp %s reads the guest's memory: attach with --memory", verb)
		}
		return fmt.Errorf("hmp %s may change the machine, and this console is read-only: attach with --write", verb)
	}
	return more
}

// rightsReader reads a Unix socket and stores the descriptors that it receives, with a bound on their number.
type rightsReader struct {
	conn  *net.UnixConn
	files []*os.File
}

// maxRights bounds the descriptors that a client has sent without naming them.
const maxRights = 4

func (r *rightsReader) Read(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxRights))
	n, oobn, _, _, err := r.conn.ReadMsgUnix(p, oob)
	if oobn > 0 {
		r.keep(oob[:oobn])
	}
	if n == 0 && err == nil {
		return 0, net.ErrClosed
	}
	return n, err
}

func (r *rightsReader) keep(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), "passed")
			if len(r.files) >= maxRights {
				f.Close()
				continue
			}
			unix.CloseOnExec(fd)
			r.files = append(r.files, f)
		}
	}
}

// take returns the oldest descriptor, or nil.
func (r *rightsReader) take() *os.File {
	if len(r.files) == 0 {
		return nil
	}
	f := r.files[0]
	r.files = r.files[1:]
	return f
}

func (r *rightsReader) drop() {
	for _, f := range r.files {
		f.Close()
	}
	r.files = nil
}
