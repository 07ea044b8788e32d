// The program of a session. session.c carries its frames. sessionstart.c (linux) and
// ../nanos/session.c start its commands and interpreters. sessionfiles.c has its file commands.
#ifndef UNITASK_SESSION_H
#define UNITASK_SESSION_H

#include "../contract/contract.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

struct command;

// session is what session_serve needs from its kernel.
struct session {
	int in, out;   // frames from the host, and frames to the host
	int log;  // gets error messages
	int event;     // readable when a command may have ended
	int again_ms;  // as in agent.h
	// start starts a command. p has flags:1 columns:2 rows:2 arguments:2 variables:2, the command's
	// folder, its arguments and its environment; a NUL follows. start returns 0 or an errno.
	int (*start)(struct command *c, uint32_t id, uint8_t *p, size_t n);
	// signal sends a signal to a command's process group, also if only other processes of it remain.
	void (*signal)(struct command *c, int sig);
	// ended reads event, and calls session_ended for each command that has ended.
	void (*ended)(void);
	// end ends the program, and does not return.
	void (*end)(int code);
};

// interrupted tests whether a call failed because a signal came, and must be repeated. Nanos has a
// separate error number for that.
static inline int interrupted(int error) { return error == EINTR || error == 512; }

// session_serve carries frames between the host and commands (../supervisor/session.go has the
// format). It does not return.
void session_serve(const struct session *with);

// session_ended reports that a command has ended: signal<<8 | exit code.
void session_ended(pid_t pid, uint32_t how);

// session_run is the program on linux. become gives a process the rights that the flags of its start
// say: those of the code's user, or of root (EXEC_ROOT, EXEC_MAY_ROOT). The streams of commands belong
// to owner, the code's user.
void session_run(void (*become)(int flags), uid_t owner);

// file_command is one of the session's own file commands.
struct file_command {
	char **argv;  // a verb, a path and the verb's arguments
	int in, out;             // its standard input and output
	volatile int cut;  // its input is incomplete: the command must end, and leave nothing behind
	char at[MAX_PATH + 32];  // temporary name of the file being written, or ""
};

// session_file runs a file command. It returns the exit code: 0, or an errno.
int session_file(struct file_command *f);

// session_copy copies at most `most` bytes from a descriptor to another. It returns 0 or an errno.
int session_copy(const struct file_command *f, int from, int to, uint64_t most);

// session_place makes or replaces a file in one step, and makes the folders above it. fill writes the
// contents. A file that exists keeps its mode.
int session_place(struct file_command *f, const char *name, mode_t mode, int (*fill)(struct file_command *f, int fd));

// session_kind returns the letter for the kind of a file with this mode.
char session_kind(mode_t m);

// session_connect carries a connection to a port of the machine (sessionforward.c).
int session_connect(const char *port);

#pragma GCC visibility pop

#endif
