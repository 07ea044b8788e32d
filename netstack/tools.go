package netstack

import (
	"context"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	toolsPort = 80
	// maxToolConnections bounds the connections for calls of tools at once, beside those that a policy counts.
	maxToolConnections = 128
)

// serveTools hands a connection to the service for calls of tools. The connection never leaves the host, and is no part
// of the netlog. It ends with the network.
func (f *forwarder) serveTools(r *tcp.ForwarderRequest) {
	defer f.toolsOpen.Add(-1)
	if f.toolsOpen.Add(1) > maxToolConnections || !f.rate.Allow() {
		r.Complete(true)
		return
	}
	var wq waiter.Queue
	ep, err := f.handshake(r, &wq)
	if err != nil {
		r.Complete(true)
		return
	}
	r.Complete(false)
	conn := gonet.NewTCPConn(&wq, ep)
	defer conn.Close()
	defer context.AfterFunc(f.ctx, func() {
		ep.Abort()
		conn.Close()
	})()
	f.tools(conn)
}
