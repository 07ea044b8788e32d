// Package guest implements both ends of the conversation with the code.
//
// Inside the machine are the agent (agent/), PID 1 of the linux guest (init/) and what Nanos needs (nanos/). Each
// language has its own part (node/, python/, shell/, golang/), as do container images (container/); all but Node
// share start/. Sources contains their C sources, which are compiled when a host vendors them. Outside are Conn,
// the host's client, and the frame format (frame.go), which both ends follow.
//
// The host trusts nothing in a frame. The package knows neither machines nor networks: its caller gives it a
// connection.
package guest

import "embed"

// Sources holds the sources of the guest's own programs.
//
//go:embed agent/*.[ch] container/program/*.c contract/*.h golang/program/*.[ch] init/*.[ch] nanos/*.[ch]
//go:embed node/addon/*.[ch] python/program/*.[ch] shell/program/*.c start/*.[ch]
var Sources embed.FS

// Nanos lists the sources that are linked into the language's own process on that kernel.
var Nanos = []string{
	"nanos/nanos.c", "nanos/session.c", "init/session.c", "init/sessionfiles.c", "nanos/libc.c", "nanos/descriptors.c",
	"nanos/files.c", "nanos/paths.c", "nanos/kept.c", "nanos/special.c",
	"nanos/sockets.c", "nanos/addresses.c", "nanos/streams.c", "agent/agent.c", "agent/frames.c", "agent/files.c",
	"agent/artifacts.c", "agent/left.c", "agent/host.c",
}

// NanosPlain lists the sources for a program that has no signal handlers, and does not wait with epoll.
var NanosPlain = append([]string{"nanos/process.c", "nanos/waits.c", "nanos/attributes.c", "nanos/limits.c"}, Nanos...)
