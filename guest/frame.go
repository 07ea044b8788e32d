package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/unitask/unitask/guest/contract"
)

// The conversation, both ends (agent/agent.c has the other; contract/contract.go has the letters and limits).
//
// Before there is a connection, single UDP datagrams between AgentPort on both sides:
//
//	UTD1                            guest → host: the bell; I am ready
//	UTS1 nonce:8 time:8 entropy:64  host → guest: the seed; time in ns since 1970
//	UTA1 nonce:8                    guest → host: that seed is in
//	UTW1                            host → guest: the next conversation is a rehearsal
//	UTW1                            guest → host: understood
//	UTX1                            guest → host: it is over and forgotten
//
// The seed comes first so that the guest's kernel has fresh entropy and the right time before it answers its first TCP
// segment.
//
// Then one TCP connection that the host dials, and frames on it: payload length (4 bytes, big-endian), type (1 byte),
// payload. All numbers are big-endian.
//
//	host to guest
//	F file          kind:1 owner:1 mode:4 size:8 mtime:8 pathlen:2 path [link target]
//	D data          part of the file announced last
//	L relay         ports (2 bytes each) of the loopback that lead to the gateway
//	P process       how to start a fresh process: folder, NUL, arguments with a NUL
//	                behind each, NUL, variables likewise, NUL
//	T terminal      columns:2 rows:2; before the start: a fresh process has a terminal;
//	                while the code runs: its new size
//	V session       before the start: the process is a session's program (session/)
//	K lasting       before the start: the conversation outlives its connection. A later seed
//	                ends the connection, if there still is one. The next connection begins
//	                with hello and this frame, and continues
//	Y layer         before the start: the guest returns a layer (Conn.Layer) instead of /out
//	W look          folder; before the start: report at the end what the code leaves in it
//	H hand out      before the start: send the compiled code before it runs
//	S start         JSON, see Start
//	G go on         the host has the compiled code: it may run
//	I stdin         bytes for standard input
//	Z end of stdin
//	A collect       after the exit: send what lies in /out
//
//	guest to host
//	h hello         JSON, see Hello
//	s started       the start was taken, entropy included; user code is next
//	o e output      bytes of standard output, of standard error
//	p program       part of the compiled code, empty after the last part. The code waits for G
//	l left          number:4, then the first of these names with a NUL after each, see Left
//	x exit          JSON, see End
//	w rehearsed     the rehearsal's program has ended
//	a artifact      kind:1 mode:4 path below /out, of something in it
//	d data          part of the file announced last
//	z end of artifacts

// Limits on what the guest sends.
const (
	// maxArtifact bounds an artifact's name and what comes before it.
	maxArtifact = contract.ArtifactHead + contract.MaxPath
	// maxJSON bounds a frame that is decoded: a hello or an exit.
	maxJSON = 4 << 10
)

// ProtocolError means that the guest violated the protocol; the run is over.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "the guest broke the protocol: " + e.Reason }

func violation(format string, args ...any) error {
	return &ProtocolError{fmt.Sprintf(format, args...)}
}

// readFrame reads one frame; the payload is valid until buf is used again. It checks the length before it reads
// or grows anything.
func readFrame(r io.Reader, buf []byte) (kind byte, payload, grown []byte, err error) {
	var h [contract.HeaderSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return 0, nil, buf, err
	}
	n := binary.BigEndian.Uint32(h[:4])
	kind = h[4]
	limit := uint32(contract.MaxFrame)
	switch kind {
	case contract.FrameStdout, contract.FrameStderr, contract.FrameArtifactData, contract.FrameProgram:
	case contract.FrameHello, contract.FrameLeft, contract.FrameExit, contract.FrameStarted, contract.FrameRehearsed,
		contract.FrameArtifactsEnd:
		limit = maxJSON
	case contract.FrameArtifact:
		limit = maxArtifact
	default:
		return 0, nil, buf, violation("a frame of unknown type %#02x", kind)
	}
	if n > limit {
		return 0, nil, buf, violation("a frame of type %q says it has %d bytes; %d is the most", kind, n, limit)
	}
	if int(n) > cap(buf) {
		buf = make([]byte, n)
	}
	payload = buf[:n]
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, buf, io.EOF
	}
	return kind, payload, buf, nil
}

// appendFrame appends a whole frame.
func appendFrame(buf []byte, kind byte, payload []byte) []byte {
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(payload)))
	buf = append(buf, kind)
	return append(buf, payload...)
}
