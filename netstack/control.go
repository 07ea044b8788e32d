package netstack

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/unitask/unitask/guest/contract"
)

// ControlPort is the UDP port on both sides for single datagrams between the host and the guest's agent, before
// there is a connection.
const ControlPort = contract.AgentPort

// controlQueue bounds unread datagrams; more are dropped.
const controlQueue = 8

// maxDatagram bounds one datagram from the guest.
const maxDatagram = 512

type control struct {
	in     chan []byte
	closed chan struct{}
}

func newControl() *control {
	return &control{in: make(chan []byte, controlQueue), closed: make(chan struct{})}
}

func (c *control) close() { close(c.closed) }

func (c *control) receive(payload []byte) {
	if len(payload) > maxDatagram {
		return
	}
	select {
	case c.in <- append([]byte(nil), payload...):
	default:
	}
}

// errLinkEnded means that the guest's end of the link is gone.
var errLinkEnded = errors.New("the guest's network card is gone")

// ReceiveDatagram returns the next datagram of the guest's agent.
func (n *Network) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	select {
	case p := <-n.control.in:
		return p, nil
	case <-n.link.done:
		return nil, errLinkEnded
	case <-n.control.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the guest: %w", context.Cause(ctx))
	}
}

// SendDatagram sends one datagram to the guest's agent. It does not block; if the guest is not there, the
// datagram is lost.
func (n *Network) SendDatagram(payload []byte) {
	n.reply(udpFrame(GatewayAddr, GuestAddr, ControlPort, ControlPort, payload), "")
}
