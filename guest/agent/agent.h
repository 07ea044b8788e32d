// The guest's end of the conversation with the host, for both kernels.
//
// On Linux the agent runs in PID 1 (../init/init.c). On Nanos, which has one process, the agent runs
// in a thread of Node's process (../nanos/nanos.c). Both give the agent the program's standard
// streams, a control channel to Node's main thread and a few hooks. Everything that the host
// receives comes from agent.c.
//
// ../frame.go describes the wire format.
#ifndef UNITASK_AGENT_H
#define UNITASK_AGENT_H

#include "../contract/contract.h"

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

// How the program ended.
struct agent_end {
	int code;    // exit code, when signal is 0
	int signal;  // the fatal signal, or 0
	int oom;     // 1 if the kernel ran out of memory during the run
};

struct agent {
	// Set by the owner before agent_run.
	const char *kernel;    // KERNEL_LINUX or KERNEL_NANOS
	uint32_t gateway;      // the host's address, network byte order
	int in_w;              // write end of the program's stdin
	int out_r, err_r;      // read ends of its stdout and stderr
	int ctl;               // stream to Node's main thread, see ../node/preload.js
	int event;             // readable when the program may have ended
	int tty;               // 1: in_w and out_r belong to a terminal; see terminal below
	int lazy;              // 1: the start frame starts Node
	int again_ms;          // poll again after this time without an event, because a kernel may lose
	                       // one; 0 for a kernel that does not
	int log;               // where the agent reports errors: the console
	uint32_t owner;        // uid and gid of files that belong to the user
	int gives_all;         // all files from the host belong to the user

	// seed mixes fresh entropy into the kernel's generator and sets the clock (nanoseconds since
	// 1970). It is called before any TCP segment is answered.
	void (*seed)(const uint8_t *entropy, size_t n, int64_t now_ns);
	// spawn starts Node (lazy only).
	void (*spawn)(struct agent *);
	// process takes a process frame, which says what spawn shall start differently (lazy only). -1 if
	// it can't.
	int (*process)(struct agent *, const uint8_t *p, size_t n);
	// terminal gives the process that spawn starts a terminal instead of its streams (lazy only). in_w
	// and out_r are then the terminal's other end. A later call changes the size. -1 if it can't.
	int (*terminal)(struct agent *, unsigned columns, unsigned rows);
	// session makes this the conversation of a session's program, before the start. in_w and out_r
	// belong to the program, or spawn will start it. -1 if it can't.
	int (*session)(struct agent *);
	// relay makes connections to these ports of the loopback lead to the gateway (relay.c); -1 if it
	// can't. It is called once, before the start.
	int (*relay)(struct agent *, const uint16_t *ports, size_t n);
	// processes limits the code's processes and threads; -1 if it can't. refused returns how many
	// processes and threads the code has not got since then. Both are NULL if there is one process.
	int (*processes)(unsigned most);
	unsigned (*refused)(void);
	// freeze stops the code's remaining processes, so that /out does not change; NULL if that is
	// impossible.
	void (*freeze)(void);
	// reset resets the code's connections to the outside, because the machine has another network.
	// NULL if that is impossible.
	void (*reset)(void);
	// The agent calls settle when the program reports its end, before the host gets that report and
	// ends the machine. NULL if there is nothing to do.
	void (*settle)(void);
	// set_length and commit are for files that the host puts. set_length only sets a file's length.
	// commit makes the kernel process what was written. There is no writable disk, and the kernel
	// need not write data beyond a file's end. NULL if that makes no difference.
	void (*set_length)(int fd, uint64_t n);
	void (*commit)(void);
	// layer begins to write the changes to the code's root as an archive, and returns a descriptor to
	// read it from. -1 if it can't; NULL if that is impossible.
	int (*layer)(void);
	// ended drains `event`; it returns 1 and fills *end once the program is over.
	int (*ended)(struct agent *, struct agent_end *end);
};

// agent_run serves one conversation. It returns 0 when the host has received the exit frame, or is
// gone. It returns -1 if the program died before a host connected.
int agent_run(struct agent *a, struct agent_end *end);

// relay_listen opens the relay's listening sockets; relay_run carries connections from them to the
// gateway and never returns.
int relay_listen(const uint16_t *ports, size_t n);
void relay_run(uint32_t gateway);

// keep_only closes all descriptors above the standard ones except the given ones: a process that
// never becomes another program would hold the code's streams open.
void keep_only(const int *fds, size_t n);

#pragma GCC visibility pop

#endif
