package httpapi

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

// A client sends more than its terminal's command reads, and goes away without a word. The command ends all the same.
func TestAttackLostTerminal(t *testing.T) {
	s := newSessionServer(t, true)
	at := s.start(nil)
	var raw net.Conn
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, to string) (net.Conn,
		error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, to)
		raw = conn
		return conn, err
	}}}
	conn, _, err := websocket.Dial(t.Context(), s.url+at+"/terminal?command=stty+raw%3Bexec+sleep+4242",
		&websocket.DialOptions{HTTPClient: client, HTTPHeader: http.Header{"Authorization": {"Bearer " + tokenOf("alice")}}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	for {
		timed, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := conn.Write(timed, websocket.MessageBinary, make([]byte, 32<<10))
		cancel()
		if err != nil { // nothing reads it any more
			break
		}
	}
	raw.Close()
	ends := testwait.Holds(4*heartbeat, func() bool {
		return s.shell(at, "pgrep -f 'sleep 424[2]' || true") == ""
	})
	attack.Check(t, "a terminal whose client is lost", "ended", map[bool]string{true: "ended", false: "goes on"}[ends])
}
