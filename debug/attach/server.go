package attach

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

// maxConsoles bounds the consoles on one machine.
const maxConsoles = 8

// Server lets processes of the same user join one machine.
type Server struct {
	Machine  *machine.Machine
	Secrets  bool // the machine holds secrets
	Redactor *record.Redactor
	Release  func() error // ends a machine that is kept after a crash
}

// Listen serves consoles at a socket in the run's folder until stop is called. If no socket can be created, the
// machine runs without one.
func (s *Server) Listen(folder string) (stop func()) {
	l, err := localsocket.Listen(folder, socketName)
	if err != nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	relay := vmm.Relay{Monitor: s.Machine.Monitor, Release: s.Release, Connections: s.connections, Grant: s.grant}
	var group sync.WaitGroup
	group.Go(func() {
		localsocket.Serve(l, maxConsoles, &group, func(conn *net.UnixConn) {
			_ = relay.Serve(ctx, conn) // the client sees the error
		})
	})
	return func() {
		cancel()
		l.Close()
		group.Wait()
		_ = os.Remove(filepath.Join(folder, socketName))
	}
}

// connections lists the machine's open connections, redacted.
func (s *Server) connections() json.RawMessage {
	list, _ := s.Redactor.Marshal(s.Machine.Connections())
	return list
}

// grant returns an error if a console may not have the requested access.
func (s *Server) grant(_ vmm.Access, args json.RawMessage) error {
	var how struct {
		WithSecrets bool `json:"withSecrets"`
	}
	_ = json.Unmarshal(args, &how)
	if s.Secrets && !how.WithSecrets {
		return errors.New("the machine holds secrets, which this access can read: attach with --with-secrets")
	}
	return nil
}
