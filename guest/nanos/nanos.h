// What is Nanos's own among the guest's programs: the agent in a thread of the
// program (nanos.c) and the functions that stand before libc's (libc.c).
#ifndef UNITASK_NANOS_H
#define UNITASK_NANOS_H

#include "../contract/contract.h"

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)  // a module of the code's may have functions of these names

int is_nanos(void);

// nanos_attach makes the program's standard streams, starts the agent, and returns
// the program's end of the control channel; -1 if it can't.
int nanos_attach(void);
int nanos_attached(void);

// nanos_take_signals has the signals that end Node tell the agent before; nanos_take_free_signals
// (process.c), those that end a program and that it does not handle, from now on.
void nanos_take_signals(void);
void nanos_take_free_signals(void);

// nanos_on_stack runs main on a stack of the size that Linux's has, and returns what it does
// (limits.c).
int nanos_on_stack(int (*main)(int, char **, char **), int argc, char **argv, char **env);

// nanos_unveil holds the program to permissions (of r, w, x and c) on a path and what is below it; NULL and NULL
// make what was said final.
void nanos_unveil(const char *path, const char *permissions);

// nanos_end tells the agent how the program ends and waits until the host has
// seen everything; the host then kills the machine. Safe in a signal handler.
// Where no agent was attached it returns.
void nanos_end(int code, int sig);

// nanos_signal ends the program as that signal does.
void nanos_signal(int sig);

// nanos_lacks notes, on the console, what the program asked for and can't have here:
// the host says then which kernel has it.
void nanos_lacks(const char *what);

// nanos_session has the agent's conversation be that of a session from now on, whose program is a thread
// (session.c); -1 if it can't.
struct agent;
int nanos_session(struct agent *a);

// nanos_interprets says that the program is the session's interpreter, and how its step is ended: at the next
// event, or by force. It returns the descriptors where code comes and where answers go; -1 where there is
// no session.
int nanos_interprets(int fds[2], void (*interrupt)(bool force));

// nanos_reset ends the program's connections to the outside as by a reset of theirs (streams.c).
void nanos_reset(void);

// nanos_relayed says that connections to this port of the loopback go to the gateway.
int nanos_relayed(uint16_t port);

#pragma GCC visibility pop

#endif
