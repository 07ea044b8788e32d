package mcp

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// The kernel's tables of TCP sockets, of this network namespace.
var tcpTables = []string{"/proc/net/tcp", "/proc/net/tcp6"}

// maxTableReads bounds the reads of the tables for one connection: a table that changes meanwhile may miss a row.
const maxTableReads = 3

// peersKnown reports whether this system tells which user holds the other end of a loopback connection.
func peersKnown() bool {
	_, err := os.Stat(tcpTables[0])
	return err == nil
}

// peerUID returns the user of the other end of a loopback connection. That is the owner of the socket that is bound to
// peer and connected to own.
func peerUID(peer, own netip.AddrPort) (int, error) {
	for range maxTableReads {
		for _, name := range tcpTables {
			f, err := os.Open(name)
			if err != nil {
				continue // no IPv6
			}
			uid, err := findSocket(f, peer, own)
			f.Close()
			if err == nil {
				return uid, nil
			}
		}
	}
	return 0, fmt.Errorf("no process holds the other end %s", peer)
}

// findSocket searches a table for the socket that is bound to local and connected to remote. A socket that no
// process holds does not count: older kernels show it as root's.
func findSocket(table io.Reader, local, remote netip.AddrPort) (uid int, err error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || !sameEnd(fields[1], local) || !sameEnd(fields[2], remote) {
			continue
		}
		if fields[9] == "0" {
			continue
		}
		if uid, err := strconv.ParseUint(fields[7], 10, 32); err == nil {
			return int(uid), nil
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("no socket of %s to %s", local, remote)
}

// sameEnd reports whether an end in the table's form equals at. The form is ADDRESS:PORT in hexadecimal, with the
// address in words of the host's byte order. An IPv4 address that is mapped into IPv6 equals the IPv4 address.
func sameEnd(text string, at netip.AddrPort) bool {
	address, port, ok := strings.Cut(text, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || uint16(n) != at.Port() {
		return false
	}
	raw, err := hex.DecodeString(address)
	if err != nil || len(raw) != 4 && len(raw) != 16 {
		return false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr.Unmap() == at.Addr().Unmap().WithZone("")
}
