package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// Routes that make an address the host's own or a neighbor's, although no interface's network contains it.
func TestAttackRoutes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a network of its own")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip: apt-get install iproute2")
	}
	runtime.LockOSThread() // permanently: the thread ends with the test, and its network with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip("needs a network of its own: ", err)
	}
	ip := func(args ...string) error {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
		return nil
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "v0", "type", "veth", "peer", "name", "v1"},
		{"link", "set", "v0", "up"}, {"link", "set", "v1", "up"},
		{"addr", "add", "11.1.1.1/32", "peer", "11.1.1.2/32", "dev", "v0"},
		{"route", "add", "local", "11.2.0.0/16", "dev", "lo"},
		{"route", "add", "local", "11.3.3.3/32", "dev", "v0", "table", "local"},
		{"route", "add", "11.4.0.0/16", "dev", "v0"},
		{"route", "add", "11.5.0.0/16", "via", "11.1.1.2"},
		{"route", "add", "unreachable", "11.6.0.0/16"},
		{"route", "add", "blackhole", "11.9.0.0/16"},
		{"route", "add", "11.7.0.0/16", "nexthop", "dev", "v0", "nexthop", "dev", "v1"},
		{"route", "add", "11.8.0.0/16", "nexthop", "via", "11.1.1.2", "nexthop", "via", "11.1.1.2", "dev", "v0", "weight",
			"2"},
		{"route", "add", "default", "via", "11.1.1.2"},
		{"-6", "route", "add", "local", "2606:1::/64", "dev", "lo"},
		{"-6", "route", "add", "2606:2::/64", "dev", "v0"},
	} {
		if err := ip(args...); err != nil {
			t.Skip("this host's network can't be made so: ", err)
		}
	}
	tunnel := ip("tuntap", "add", "t0", "mode", "tun") == nil && ip("link", "set", "t0", "up") == nil &&
		ip("route", "add", "12.0.0.0/8", "dev", "t0") == nil && ip("route", "add", "13.1.1.1/32", "dev", "t0") == nil
	const own, open = "leads to an address of this host or of its network: --allow-tcp may name it", "dialled"
	for _, c := range []struct{ name, addr, want string }{
		{"another one of a load balancer", "11.2.3.4", own},
		{"a single one of a load balancer", "11.3.3.3", own},
		{"the other end of a link", "11.1.1.2", own},
		{"a neighbour by a route", "11.4.5.6", own},
		{"a neighbour by one of two links", "11.7.5.6", own},
		{"behind one of two routers", "11.8.5.6", open},
		{"a route that refuses", "11.9.5.6", "look up the host's route to 11.9.5.6: invalid argument"},
		{"IPv6, the host's own", "2606:1::9", own},
		{"IPv6, a neighbour by a route", "2606:2::9", own},
		{"behind NAT64", "64:ff9b::b02:304", own},
		{"behind a router", "11.5.5.5", open},
		{"not to be reached", "11.6.5.5", open},
		{"anywhere else", "11.99.5.5", open},
		{"IPv6 without a route", "2606:3::9", open},
		{"a network behind a tunnel", "12.5.5.5", open},
		{"the end of a tunnel", "13.1.1.1", own},
	} {
		if !tunnel && (c.addr[:2] == "12" || c.addr[:2] == "13") {
			t.Logf("%s: no tunnel can be made here", c.name)
			continue
		}
		addr := netip.MustParseAddr(c.addr)
		u := Upstream{Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
			a, b := net.Pipe()
			b.Close()
			return a, nil
		}}.withDefaults()
		conn, _, err := u.dial(t.Context(), target{addr: addr, port: 80}, &Rule{Text: "r", Addr: addr}, nil)
		got := open
		if err != nil {
			got = dialReason(err)
		} else {
			conn.Close()
		}
		attack.Check(t, "an address by the host's routes: "+c.name, c.want, got)
	}
}

// Errors of the kernel: an error that says nothing about a route does not permit a dial.
func TestAttackRouteErrors(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.ENETUNREACH: "no route", unix.EHOSTUNREACH: "no route",
		unix.EPERM: "refused", unix.ENOBUFS: "refused", unix.EINVAL: "refused", unix.EOPNOTSUPP: "refused", 0: "refused",
	} {
		answer := binary.NativeEndian.AppendUint32(nil, 36)
		answer = binary.NativeEndian.AppendUint16(answer, unix.NLMSG_ERROR)
		answer = append(answer, make([]byte, 10)...)
		answer = binary.NativeEndian.AppendUint32(answer, uint32(-int32(errno)))
		answer = append(answer, make([]byte, 16)...)
		_, err := parseRoute(answer)
		got := "dialled"
		switch {
		case errors.Is(err, errNoRoute):
			got = "no route"
		case err != nil:
			got = "refused"
		}
		attack.Check(t, "the kernel answers a question about a route with "+errno.Error(), want, got)
	}
}

// Answers of the kernel that do not match the question.
func TestParseRoute(t *testing.T) {
	for _, answer := range [][]byte{nil, {1}, make([]byte, 16),
		{20, 0, 0, 0, unix.RTM_NEWROUTE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0},
		{255, 0, 0, 0, unix.RTM_NEWROUTE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		append([]byte{32, 0, 0, 0, unix.RTM_NEWROUTE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 12, 16)...)} {
		if r, err := parseRoute(answer); err == nil {
			t.Errorf("% x: %+v", answer, r)
		}
	}
}
