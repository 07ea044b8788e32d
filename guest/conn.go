package guest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// Network connects the host to the guest; netstack.Network implements it.
type Network interface {
	// SendDatagram sends one datagram to the agent; it may be lost.
	SendDatagram(payload []byte)
	// ReceiveDatagram waits for a datagram from the agent until ctx ends or the guest is gone.
	ReceiveDatagram(ctx context.Context) ([]byte, error)
	// DialGuest opens a TCP connection to a port of the guest.
	DialGuest(ctx context.Context, port uint16) (net.Conn, error)
	// Done is closed when the guest is gone. A connection into the guest does not notice that by itself, because
	// nothing sends a reset.
	Done() <-chan struct{}
}

// Hello is the agent's first frame.
type Hello struct {
	Version int    `json:"version"`
	Kernel  string `json:"kernel"` // contract.KernelLinux or KernelNanos
	// Started means that the program is already running, in a conversation that continues.
	Started bool `json:"started,omitempty"`
}

// End is how the code ended, as the guest reports it.
type End struct {
	Code   int  `json:"code"`   // 0 to 255; valid when Signal is 0
	Signal int  `json:"signal"` // the fatal signal's number, or 0
	OOM    bool `json:"oom"`    // the guest ran out of memory
	Out    bool `json:"out"`    // /out is not empty
	// Refused is how many processes and threads the code did not get (Processes).
	Refused int   `json:"refused,omitempty"`
	Left    *Left `json:"-"` // nil if nothing was left, or nobody asked
}

// Left is what the code has left in the folder of Look. It is the code's word: names can't be trusted.
type Left struct {
	Count int      // of files and folders that are new or changed
	Names []string // the first names; a folder's ends with a slash
}

// Conn is the conversation with one guest. One goroutine at a time may use it; only Close may be called from
// anywhere, and ends every other call.
//
// There is one writer at a time. Until Stream it is the caller, and then the feed of standard input. Once the feed has
// ended, which Collect waits for, it is the caller again.
type Conn struct {
	Hello Hello

	conn  net.Conn
	r     *bufio.Reader
	w     *bufio.Writer // buffers Put's frames; send flushes it
	buf   []byte
	files int                  // number of files that were put
	feed  atomic.Pointer[feed] // nil before Stream

	process bool        // Process was called
	looks   bool        // Look was called
	handOut *handOut    // HandOut was called
	resized <-chan Size // nil without a terminal
	early   []byte      // output of that process before its start, which Stream passes on

	closing sync.Once
	closed  chan struct{}
	gone    atomic.Bool // the guest is gone
	watcher sync.WaitGroup
}

// Await waits for the guest's bell: the agent is up and waits for its start.
func Await(ctx context.Context, n Network) error {
	for {
		p, err := n.ReceiveDatagram(ctx)
		if err != nil {
			return err
		}
		if string(p) == contract.WordBell {
			return nil
		}
	}
}

// askEvery is the delay before a datagram without answer is sent again: a clone's network card needs a moment
// until it accepts frames.
const askEvery = 5 * time.Millisecond

// Connect seeds the guest with the time and fresh entropy, dials its agent and reads its hello.
func Connect(ctx context.Context, n Network) (*Conn, error) { return connect(ctx, n, false) }

// Rejoin continues a lasting conversation (Lasting) on another network, or on the same one after its connection
// was lost. The guest gets the time and fresh entropy, and the streams of the running program continue (Stream).
// Data in transit between host and guest may be lost.
func Rejoin(ctx context.Context, n Network) (*Conn, error) {
	c, err := connect(ctx, n, true)
	if err == nil {
		if err = c.Lasting(); err != nil { // tells the guest that the host has its hello
			c.Close()
			return nil, err
		}
	}
	return c, err
}

func connect(ctx context.Context, n Network, started bool) (*Conn, error) {
	if err := seed(ctx, n); err != nil {
		return nil, err
	}
	conn, err := n.DialGuest(ctx, contract.AgentPort)
	if err != nil {
		return nil, err
	}
	c := &Conn{conn: conn, r: bufio.NewReaderSize(conn, 128<<10), w: bufio.NewWriterSize(conn, 128<<10),
		buf: make([]byte, 64<<10), closed: make(chan struct{})}
	c.watcher.Go(func() { c.watch(n.Done()) })
	stop := context.AfterFunc(ctx, c.abort)
	defer stop()
	kind, payload, err := c.read()
	if err == nil && kind != contract.FrameHello {
		err = violation("frame %q before hello", kind)
	}
	if err == nil {
		err = decode(payload, &c.Hello)
	}
	if err == nil && c.Hello.Version != contract.Version {
		err = violation("it speaks version %d, this is %d", c.Hello.Version, contract.Version)
	}
	if err == nil && c.Hello.Started != started {
		err = violation("it says that the program's start is %t; it is %t", c.Hello.Started, started)
	}
	if err == nil && c.Hello.Kernel != contract.KernelLinux && c.Hello.Kernel != contract.KernelNanos {
		err = violation("it names the kernel %.80q", c.Hello.Kernel)
	}
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("wait for the guest's hello: %w", context.Cause(ctx))
		}
		return nil, err
	}
	return c, nil
}

// drainTime is how long data of a gone guest may still be read.
const drainTime = 200 * time.Millisecond

// watch ends every call on the connection soon after the guest is gone.
func (c *Conn) watch(gone <-chan struct{}) {
	select {
	case <-gone:
		c.gone.Store(true)
		_ = c.conn.SetDeadline(time.Now().Add(drainTime))
	case <-c.closed:
	}
}

// within sets a time limit for the calls that follow, 0 for none. The limit of a guest that is gone stays.
func (c *Conn) within(limit time.Duration) {
	var at time.Time
	if limit > 0 {
		at = time.Now().Add(limit)
	}
	if !c.gone.Load() {
		_ = c.conn.SetDeadline(at)
	}
	if c.gone.Load() { // gone meanwhile
		_ = c.conn.SetDeadline(time.Now().Add(drainTime))
	}
}

// seed sends seeds until one is acknowledged. Each contains the time of its sending.
func seed(ctx context.Context, n Network) error {
	var m [4 + 8 + 8 + contract.EntropySize]byte
	copy(m[:], contract.WordSeed)
	if _, err := rand.Read(m[4:]); err != nil {
		return err
	}
	err := ask(ctx, n, m[:], func(p []byte) bool {
		return len(p) == 12 && string(p[:4]) == contract.WordSeeded && bytes.Equal(p[4:], m[4:12])
	})
	if err != nil {
		return fmt.Errorf("seed the guest: %w", err)
	}
	return nil
}

// ask sends a datagram until it is answered. A datagram with a seed's length contains the time of each sending in
// bytes 12 to 19.
func ask(ctx context.Context, n Network, m []byte, answers func([]byte) bool) error {
	for wait := askEvery; ; wait += askEvery {
		if len(m) > 20 {
			binary.BigEndian.PutUint64(m[12:], uint64(time.Now().UnixNano()))
		}
		n.SendDatagram(m)
		attempt, cancel := context.WithTimeout(ctx, wait)
		p, err := n.ReceiveDatagram(attempt)
		for err == nil && !answers(p) {
			p, err = n.ReceiveDatagram(attempt)
		}
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		}
	}
}

func (c *Conn) read() (kind byte, payload []byte, err error) {
	kind, payload, c.buf, err = readFrame(c.r, c.buf)
	return kind, payload, err
}

// decode parses JSON from the agent. The agent writes each value in exactly one form, that of encoding/json. Any other
// key, spelling, order, blank or number is refused, and so is text after it.
func decode(payload []byte, into any) error {
	if err := json.Unmarshal(payload, into); err != nil {
		return violation("%v", err)
	}
	if again, err := json.Marshal(into); err != nil || !bytes.Equal(again, payload) {
		return violation("%.200q is not as the agent writes it", payload)
	}
	return nil
}

func (c *Conn) send(kind byte, payload []byte) error {
	if err := c.write(kind, payload); err != nil {
		return err
	}
	return c.w.Flush()
}

// write buffers a frame.
func (c *Conn) write(kind byte, payload []byte) error {
	var h [contract.HeaderSize]byte
	binary.BigEndian.PutUint32(h[:], uint32(len(payload)))
	h[4] = kind
	_, err := c.w.Write(h[:])
	if err == nil {
		_, err = c.w.Write(payload)
	}
	return err
}

// Relay makes the guest listen on these ports of its loopback and forward each connection to the same port of the
// gateway. It must be called before Start.
func (c *Conn) Relay(ports []uint16) error {
	if len(ports) == 0 {
		return nil
	}
	var p []byte
	for _, port := range ports {
		p = binary.BigEndian.AppendUint16(p, port)
	}
	if err := c.send(contract.FrameRelay, p); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

// ErrGone means that the guest disappeared without an exit frame.
var ErrGone = errors.New("the guest went away")

// Stream carries the streams of a started program until the program ends. stdin may be nil: the program then
// reads end of file at once. Output is written as it arrives; a failing writer ends the stream with its error.
// When ctx ends, Stream returns its cause. Stream returns as soon as the program has ended, however much of stdin
// is left. After an error the conversation is over. If stdin can't be read any more, the program reads end of
// file; StdinErr returns why.
//
// A stdin whose Read blocks for ever keeps one goroutine until Read returns, unless it has a SetReadDeadline (files and
// connections do). If it has one, Stream stops reading it, and leaves it without a deadline.
func (c *Conn) Stream(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (end End, err error) {
	stop := context.AfterFunc(ctx, c.abort)
	defer stop()
	if len(c.early) > 0 {
		if _, err := stderr.Write(c.early); err != nil {
			return End{}, err
		}
	}
	f := startFeed(c, stdin)
	c.feed.Store(f)
	defer func() {
		f.stop()
		if err != nil {
			c.abort()
		}
	}()
	var left *Left
	for {
		kind, payload, err := c.read()
		switch {
		case ctx.Err() != nil:
			return End{}, context.Cause(ctx)
		case errors.As(err, new(*ProtocolError)):
			return End{}, err
		case err != nil:
			return End{}, ErrGone
		}
		switch kind {
		case contract.FrameStdout:
			_, err = stdout.Write(payload)
		case contract.FrameStderr:
			_, err = stderr.Write(payload)
		case contract.FrameExit:
			end, err := decodeEnd(payload)
			end.Left = left
			return end, err
		case contract.FrameLeft:
			if !c.looks || left != nil {
				return End{}, violation("it tells what was left, and nobody asked")
			}
			left, err = decodeLeft(payload)
		case contract.FrameProgram:
			err = c.handOut.take(payload)
		default:
			err = violation("frame %q while the code runs", kind)
		}
		if err != nil {
			return End{}, err
		}
	}
}

// StdinErr returns, after Stream, why stdin could not be read to its end. It is nil if stdin was read to its end,
// or the program ended before. A terminal has no such error: a terminal that hangs up has ended.
func (c *Conn) StdinErr() error {
	if f := c.feed.Load(); f != nil && f.stdin != nil && c.resized == nil {
		return f.stdin.Err()
	}
	return nil
}

func decodeEnd(payload []byte) (End, error) {
	var end End
	if err := decode(payload, &end); err != nil {
		return End{}, err
	}
	if end.Code < 0 || end.Code > 255 || end.Signal < 0 || end.Signal > 64 || end.Refused < 0 {
		return End{}, violation("exit code %d, signal %d, %d refused", end.Code, end.Signal, end.Refused)
	}
	return end, nil
}

func decodeLeft(payload []byte) (*Left, error) {
	if len(payload) < 4 {
		return nil, violation("it has left something in %d bytes", len(payload))
	}
	left := &Left{Count: int(binary.BigEndian.Uint32(payload))}
	for name := range bytes.SplitSeq(payload[4:], []byte{0}) {
		if len(name) > 0 && len(left.Names) < left.Count {
			left.Names = append(left.Names, string(name))
		}
	}
	if left.Count < 1 || left.Count > math.MaxInt32 || len(left.Names) == 0 {
		return nil, violation("it has left %d files, and names %d", left.Count, len(left.Names))
	}
	return left, nil
}

// abort ends every call on the connection. Closing alone does not end a Write on gVisor's connections; a deadline
// in the past does.
func (c *Conn) abort() {
	_ = c.conn.SetDeadline(time.Unix(1, 0))
	_ = c.conn.Close()
}

// Close ends the conversation and every call on it. It may be called more than once.
func (c *Conn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	c.abort()
	if f := c.feed.Load(); f != nil {
		f.wait()
	}
	c.watcher.Wait()
	return nil
}
