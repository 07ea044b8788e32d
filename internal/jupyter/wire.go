package jupyter

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/internal/nesting"
	"github.com/unitask/unitask/internal/regular"
	"github.com/unitask/unitask/internal/zmtp"
)

// protocol is the version of Jupyter's messaging protocol.
const protocol = "5.3"

// Connection is the file in which Jupyter says where its kernel is to listen.
type Connection struct {
	Transport string `json:"transport"`
	IP        string `json:"ip"`
	Key       string `json:"key"`
	Scheme    string `json:"signature_scheme"`
	Shell     int    `json:"shell_port"`
	Control   int    `json:"control_port"`
	IOPub     int    `json:"iopub_port"`
	Stdin     int    `json:"stdin_port"`
	Heartbeat int    `json:"hb_port"`
}

// maxConnection bounds the connection file, in bytes.
const maxConnection = 64 << 10

// ReadConnection reads and checks a connection file.
func ReadConnection(name string) (c Connection, err error) {
	text, err := regular.Read(name, maxConnection)
	if err == nil {
		c, err = parseConnection(text)
	}
	if err != nil {
		return c, fmt.Errorf("connection file %s: %w", name, err)
	}
	return c, nil
}

func parseConnection(text []byte) (c Connection, err error) {
	if err := json.Unmarshal(text, &c); err != nil {
		return c, err
	}
	switch {
	case c.Key == "":
		return c, errors.New("key is missing: without one, other users of this host could run code")
	case c.Scheme != "hmac-sha256":
		return c, fmt.Errorf("signature_scheme %.40q: must be hmac-sha256", c.Scheme)
	case c.Transport != "tcp" && c.Transport != "ipc":
		return c, fmt.Errorf("transport %.40q: must be tcp or ipc", c.Transport)
	case c.Transport == "tcp" && net.ParseIP(c.IP) == nil && c.IP != "localhost":
		return c, fmt.Errorf("ip %.80q: must be an address, as 127.0.0.1", c.IP)
	case c.Transport == "ipc" && c.IP == "":
		return c, errors.New("ip is missing: with ipc it is the beginning of the sockets' paths")
	}
	for name, port := range c.ports() {
		if port < 1 || port > 65535 {
			return c, fmt.Errorf("%s_port %d: must be from 1 to 65535", name, port)
		}
	}
	return c, nil
}

func (c *Connection) ports() map[string]int {
	return map[string]int{"shell": c.Shell, "control": c.Control, "iopub": c.IOPub, "stdin": c.Stdin, "hb": c.Heartbeat}
}

// listen listens at a port: with ipc, at a socket that only this user may use.
func (c *Connection) listen(port int) (net.Listener, error) {
	if c.Transport == "tcp" {
		return net.Listen("tcp", net.JoinHostPort(c.IP, strconv.Itoa(port)))
	}
	name := fmt.Sprintf("%s-%d", c.IP, port)
	l, err := localsocket.Listen(filepath.Dir(name), filepath.Base(name))
	return removed{l, name}, err
}

// removed is a listener whose socket's file is removed with it.
type removed struct {
	*net.UnixListener
	name string
}

func (r removed) Close() error { return errors.Join(r.UnixListener.Close(), os.Remove(r.name)) }

// Limits of a client's messages.
const (
	maxDepth  = 64      // brackets in one another
	maxValues = 1 << 20 // values of a message
	maxID     = 256     // bytes of an id
)

// maxSent bounds the content of a message to a client, in bytes: a socket cuts off a client for which more waits.
const maxSent = 48 << 20

var errTooLarge = fmt.Errorf("what the code shows has over %d bytes for a client", maxSent)

// header is a message's header.
type header struct {
	ID       string `json:"msg_id"`
	Type     string `json:"msg_type"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	Version  string `json:"version"`
}

// message is a client's message.
type message struct {
	peer    string          // who sent it
	header  json.RawMessage // as it came
	kind    string          // msg_type
	content json.RawMessage
	large   int  // its bytes
	aborted bool // a cell that must not run
}

// delimiter ends a message's identities.
var delimiter = []byte("<IDS|MSG>")

// signer signs and checks messages.
type signer struct{ key []byte }

func (s signer) sum(parts [][]byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	for _, part := range parts {
		mac.Write(part)
	}
	return hex.AppendEncode(nil, mac.Sum(nil))
}

// parse reads a message. It checks the signature before anything of the content is decoded.
func (s signer) parse(peer string, frames zmtp.Message) (*message, error) {
	at := 0
	for at < len(frames) && !bytes.Equal(frames[at], delimiter) {
		at++
	}
	if len(frames)-at < 6 {
		return nil, fmt.Errorf("a message of %d frames after its identities: it must have a delimiter, a signature, "+
			"and four parts", max(0, len(frames)-at))
	}
	signature, parts := frames[at+1], frames[at+2:at+6]
	if !hmac.Equal(signature, s.sum(parts)) {
		return nil, errors.New("a message with a wrong signature")
	}
	m := &message{peer: peer, header: parts[0], content: parts[3]}
	for _, part := range parts {
		if err := nesting.Check(part, maxDepth, maxValues); err != nil {
			return nil, fmt.Errorf("a message %w", err)
		}
		m.large += len(part)
	}
	var h header
	if err := json.Unmarshal(m.header, &h); err != nil {
		return nil, fmt.Errorf("a message's header: %w", err)
	}
	if h.Type == "" || len(h.Type) > maxID || len(m.header) > 16*maxID {
		return nil, errors.New("a message's header has no type, or is too large")
	}
	m.kind = h.Type
	return m, nil
}

// encode returns the frames of a message behind its identities.
func (s signer) encode(session, kind string, parent json.RawMessage, content any) (zmtp.Message, error) {
	h, err := json.Marshal(header{ID: uuid.NewString(), Type: kind, Session: session, Username: "unitask",
		Date: time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"), Version: protocol})
	if err != nil {
		return nil, err
	}
	if parent == nil {
		parent = json.RawMessage("{}")
	}
	var body bytes.Buffer
	to := json.NewEncoder(&body)
	to.SetEscapeHTML(false) // six bytes for one
	if err := to.Encode(content); err != nil {
		return nil, err
	}
	if body.Len() > maxSent {
		return nil, errTooLarge
	}
	parts := [][]byte{h, parent, []byte("{}"), body.Bytes()}
	return append(zmtp.Message{delimiter, s.sum(parts)}, parts...), nil
}
