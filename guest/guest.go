// Package guest is both ends of the conversation with the code.
//
// Inside the machine: the agent (agent/), PID 1 of the linux guest (init/), what
// Nanos needs (nanos/), each language's own part (node/, python/, shell/, golang/) and that of container images (container/), and start/, which
// what is not Node shares); their C sources are in
// Sources and are compiled where they are vendored. Outside: Conn, the host's
// client, and the frame format (frame.go), which both ends keep.
//
// The host trusts nothing that comes in a frame. The package knows neither
// machines nor networks: it is given a connection.
package guest

import "embed"

// Sources holds the sources of the guest's own programs.
//
//go:embed agent/*.[ch] container/program/*.c contract/*.h golang/program/*.[ch] init/*.[ch] nanos/*.[ch] node/addon/*.[ch] python/program/*.[ch] shell/program/*.c start/*.[ch]
var Sources embed.FS

// Nanos are those of them that stand in the language's own process on that kernel.
var Nanos = []string{
	"nanos/nanos.c", "nanos/session.c", "init/session.c", "init/sessionfiles.c", "nanos/libc.c", "nanos/descriptors.c", "nanos/files.c", "nanos/paths.c", "nanos/kept.c", "nanos/special.c",
	"nanos/sockets.c", "nanos/addresses.c", "nanos/streams.c", "agent/agent.c",
}

// NanosPlain are those for a program that has no handlers for signals, and waits otherwise than by epoll.
var NanosPlain = append([]string{"nanos/process.c", "nanos/waits.c", "nanos/attributes.c", "nanos/limits.c"}, Nanos...)
