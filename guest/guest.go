// Package guest is both ends of the conversation with the code.
//
// Inside the machine: the agent (agent/agent.c and agent.js), PID 1 of the
// linux guest (init/init.c) and the Node addon (shim/shim.c); their sources are
// in Sources and are compiled where they are vendored. Outside: Conn, the
// host's client, and the frame format (frame.go), which both ends keep.
//
// The host trusts nothing that comes in a frame. The package knows neither
// machines nor networks: it is given a connection.
package guest

import "embed"

// Sources holds the sources of the guest's own programs.
//
//go:embed agent/agent.c agent/agent.h agent/relay.c agent/agent.js agent/rehearsal.js init/init.c shim/shim.c
var Sources embed.FS

// rehearsal is the throw-away program.
//
//go:embed agent/rehearsal.js
var rehearsal string
