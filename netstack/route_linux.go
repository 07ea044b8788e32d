package netstack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// routeTime bounds the wait for the kernel's answer, which normally is immediate.
const routeTime = 2 * time.Second

// routedHere asks the kernel (rtnetlink(7)) whether an address belongs to the host or to a network that the host is on,
// in any routing table. Addresses that no interface has can be the host's too (ip route add local, as load balancers
// use it). Neighbours need not be in an interface's own network (the other end of a link, ip route add NET dev eth0).
func routedHere(addr netip.Addr) (bool, error) {
	addr = addr.Unmap()
	answer, err := askRoute(addr)
	if errors.Is(err, errNoRoute) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up the host's route to %s: %w", addr, err)
	}
	return answer.here(addr.BitLen()), nil
}

// route is an entry of the kernel's routing tables.
type route struct {
	kind    uint8 // RTN_LOCAL, …
	bits    int   // of its destination; 0 is the default route
	gateway bool  // the next hop is a router
	device  int   // the interface's index
}

// here reports whether a route leads to the host, or to a neighbour.
func (r route) here(all int) bool {
	switch {
	case r.kind == unix.RTN_LOCAL, r.kind == unix.RTN_BROADCAST, r.kind == unix.RTN_ANYCAST, r.kind == unix.RTN_MULTICAST:
		return true
	case r.kind != unix.RTN_UNICAST || r.gateway || r.bits == 0:
		return false
	case r.bits == all:
		return true
	}
	// The host is not on a network behind a tunnel: VPNs route half of all addresses that way.
	dev, err := net.InterfaceByIndex(r.device)
	return err != nil || dev.Flags&net.FlagPointToPoint == 0
}

var errNoRoute = errors.New("no route")

// askRoute returns the entry that the kernel would use to send to an address.
func askRoute(addr netip.Addr) (r route, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return r, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(routeTime))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		return r, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Sendto(fd, routeQuestion(addr), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return r, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 8<<10)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return r, os.NewSyscallError("recvfrom", err)
	}
	return parseRoute(answer[:n])
}

// routeQuestion returns a message that asks for the table entry of an address, not for the kernel's derived
// route.
func routeQuestion(addr netip.Addr) []byte {
	family := byte(unix.AF_INET)
	if addr.Is6() {
		family = unix.AF_INET6
	}
	raw := addr.AsSlice()
	msg := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg,
		unix.SizeofNlMsghdr+unix.SizeofRtMsg+unix.SizeofRtAttr+len(raw))
	header, body := (*unix.NlMsghdr)(unsafe.Pointer(&msg[0])), (*unix.RtMsg)(unsafe.Pointer(&msg[unix.SizeofNlMsghdr]))
	header.Type, header.Flags, header.Len = unix.RTM_GETROUTE, unix.NLM_F_REQUEST, uint32(cap(msg))
	body.Family, body.Dst_len, body.Flags = family, byte(addr.BitLen()), unix.RTM_F_FIB_MATCH
	msg = binary.NativeEndian.AppendUint16(msg, uint16(unix.SizeofRtAttr+len(raw)))
	msg = binary.NativeEndian.AppendUint16(msg, unix.RTA_DST)
	return append(msg, raw...)
}

// parseRoute parses the kernel's answer.
func parseRoute(answer []byte) (r route, err error) {
	messages, err := syscall.ParseNetlinkMessage(answer)
	if err != nil || len(messages) == 0 {
		return r, errors.Join(errors.New("the kernel's answer can't be read"), err)
	}
	m := &messages[0]
	switch {
	case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
		switch errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data))); errno {
		case unix.ENETUNREACH, unix.EHOSTUNREACH: // any other error says nothing about the destination
			return r, fmt.Errorf("%w: %w", errNoRoute, errno)
		default:
			return r, errno
		}
	case m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg:
		return r, fmt.Errorf("the kernel answers with a message of type %d", m.Header.Type)
	}
	body := (*unix.RtMsg)(unsafe.Pointer(&m.Data[0]))
	r.kind, r.bits = body.Type, int(body.Dst_len)
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return r, err
	}
	for _, a := range attributes {
		switch a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER) {
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			r.gateway = true
		case unix.RTA_MULTIPATH:
			r.gateway = allByRouter(a.Value)
		case unix.RTA_OIF:
			if len(a.Value) >= 4 {
				r.device = int(binary.NativeEndian.Uint32(a.Value))
			}
		}
	}
	return r, nil
}

// allByRouter reports whether all of several next hops (struct rtnexthop, each followed by its attributes) are
// routers. Any other hop leads to a neighbour.
func allByRouter(hops []byte) bool {
	const head = unix.SizeofRtNexthop
	for len(hops) >= head {
		size := int(binary.NativeEndian.Uint16(hops))
		if size < head || size > len(hops) {
			return false
		}
		router := false
		for rest := hops[head:size]; len(rest) >= unix.SizeofRtAttr; {
			n := int(binary.NativeEndian.Uint16(rest))
			if n < unix.SizeofRtAttr || n > len(rest) {
				return false
			}
			kind := binary.NativeEndian.Uint16(rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			router = router || kind == unix.RTA_GATEWAY || kind == unix.RTA_VIA
			rest = rest[min((n+3)&^3, len(rest)):]
		}
		if !router {
			return false
		}
		if hops = hops[min((size+3)&^3, len(hops)):]; len(hops) == 0 {
			return true
		}
	}
	return false
}
