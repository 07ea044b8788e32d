// The guest side of the conversation with the host: what both kernels share.
//
// On Linux it runs in PID 1 (../init/init.c); on Nanos, which has one process,
// in a thread of Node's own process (../nanos/nanos.c). The two give it the
// program's standard streams, a control channel to Node's main thread and a
// few hooks; everything the host sees comes from agent.c.
//
// The wire format is described once, in ../frame.go.
#ifndef UNITASK_AGENT_H
#define UNITASK_AGENT_H

#include "../contract/contract.h"

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)  // a module of the code's may have functions of these names

// How the program ended.
struct agent_end {
	int code;    // exit code, when signal is 0
	int signal;  // the fatal signal, or 0
	int oom;     // 1 when the kernel ran out of memory meanwhile
};

struct agent {
	// Set by the owner before agent_run.
	const char *kernel;    // KERNEL_LINUX or KERNEL_NANOS
	uint32_t gateway;      // the host's address, network byte order
	int in_w;              // write end of the program's stdin
	int out_r, err_r;      // read ends of its stdout and stderr
	int ctl;               // stream to Node's main thread, see ../node/preload.js
	int event;             // becomes readable when the program may have ended
	int tty;               // 1: in_w and out_r are a terminal's (terminal)
	int lazy;              // 1: Node is started by the start frame, not before
	int again_ms;          // after so long without an event, look again: a kernel may lose
	                       // one; 0 for one that does not
	int log;               // where the agent reports what goes wrong: the console
	uint32_t owner;        // uid and gid of files that belong to the user
	int gives_all;         // all files that come belong to the user

	// seed mixes fresh entropy into the kernel's generator and sets the clock
	// (nanoseconds since 1970). Called before any TCP segment is answered.
	void (*seed)(const uint8_t *entropy, size_t n, int64_t now_ns);
	// spawn starts Node (lazy only).
	void (*spawn)(struct agent *);
	// process takes what spawn is to do otherwise, a process frame (lazy only); -1 if it
	// can't.
	int (*process)(struct agent *, const uint8_t *p, size_t n);
	// terminal gives what spawn starts a terminal of this size in the place of its
	// streams (lazy only), in_w and out_r then being its other end; later it changes the
	// size. -1 if it can't.
	int (*terminal)(struct agent *, unsigned columns, unsigned rows);
	// session has a session's program be the conversation's, before the start: in_w and
	// out_r are its, or spawn will start it; -1 if it can't.
	int (*session)(struct agent *);
	// relay has connections to these ports of the loopback lead to the gateway from
	// now on (relay.c); -1 if it can't. Called once, before the start.
	int (*relay)(struct agent *, const uint16_t *ports, size_t n);
	// processes sets how many processes and threads the code may have at once; -1 if it
	// can't. refused says how many it did not get since. NULL where there is one process.
	int (*processes)(unsigned most);
	unsigned (*refused)(void);
	// freeze stops what the code left running, so that /out stays as it is; NULL where
	// that can't be.
	void (*freeze)(void);
	// reset ends the code's connections to the outside, whose network is another one, as by
	// a reset of theirs; NULL where that can't be.
	void (*reset)(void);
	// settle is called when the program says that it has ended, before the host is told,
	// which ends the machine; NULL where nothing is left to do then.
	void (*settle)(void);
	// set_length sets a file's length and nothing else, and commit has the kernel look at
	// what has been written, for the files that the host puts: what lies behind the end of
	// a file need not go to a disk, and there is none. NULL where it makes no difference.
	void (*set_length)(int fd, uint64_t n);
	void (*commit)(void);
	// layer begins to write what the code has changed of its root, as an archive, and returns
	// where it is read, -1 if it can't; NULL where that can't be.
	int (*layer)(void);
	// ended drains `event`; it returns 1 and fills *end once the program is over.
	int (*ended)(struct agent *, struct agent_end *end);
};

// agent_run serves one conversation and returns when it is over: after the
// exit frame was taken by the host, or when the host went away. It returns 0
// for a finished run and -1 when the program died before a host was there.
int agent_run(struct agent *a, struct agent_end *end);

// relay_listen opens the relay's listening sockets; relay_run carries connections
// from them to the gateway and never returns.
int relay_listen(const uint16_t *ports, size_t n);
void relay_run(uint32_t gateway);

// keep_only closes all descriptors above the standard ones but these: a process that never becomes another
// program would hold the code's streams open.
void keep_only(const int *fds, size_t n);

#pragma GCC visibility pop

#endif
