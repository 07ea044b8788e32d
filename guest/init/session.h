// The program of a session: what carries frames (session.c), what starts its commands and interpreters
// (sessionstart.c on linux, ../nanos/session.c), and its commands about files (sessionfiles.c).
#ifndef UNITASK_SESSION_H
#define UNITASK_SESSION_H

#include "../contract/contract.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)  // a module of the code's may have functions of these names

struct command;

// session is what the frames' program needs of its kernel.
struct session {
	int in, out;   // from the host, and to it
	int log;       // where it says what goes wrong
	int event;     // readable when a command may have ended
	int again_ms;  // as agent.h has it
	// start starts a command: flags:1 columns:2 rows:2 arguments:2 variables:2, its folder, its
	// arguments, its environment; there is a NUL behind all. It returns an errno.
	int (*start)(struct command *c, uint32_t id, uint8_t *p, size_t n);
	// signal sends a signal to a command's group; of one that is over, to those that are left in it.
	void (*signal)(struct command *c, int sig);
	// ended reads event, and calls session_ended for each command that has.
	void (*ended)(void);
	// end ends the program, and does not return.
	void (*end)(int code);
};

// interrupted says that a call that failed with this error is to be made again: a signal came in between. Nanos has a
// number of its own for that.
static inline int interrupted(int error) { return error == EINTR || error == 512; }

// session_serve carries frames between the host and commands (../session/session.go has the format). It
// does not return.
void session_serve(const struct session *with);

// session_ended says that a command has ended: signal<<8 | exit code.
void session_ended(pid_t pid, uint32_t how);

// session_run is the program on linux. become makes a process that of the code's user.
void session_run(void (*become)(void));

// A command of the session's own, about files.
struct file_command {
	char **argv;             // a verb, a path and what the verb takes
	int in, out;             // its standard input and output
	volatile int cut;        // it is to end, and to leave nothing behind: its input is no longer what is to be written
	char at[MAX_PATH + 32];  // what is being written, before it has its name; "" if nothing is
};

// session_file runs one. It returns the exit code: 0, or an errno.
int session_file(struct file_command *f);

// session_connect carries a connection to a port of the machine (sessionforward.c).
int session_connect(const char *port);

#pragma GCC visibility pop

#endif
