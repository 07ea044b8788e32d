// The interface of the parts for Nanos: the agent in a thread of the program (nanos.c), and
// replacements of libc's functions (libc.c).
#ifndef UNITASK_NANOS_H
#define UNITASK_NANOS_H

#include "../contract/contract.h"

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

int is_nanos(void);

// nanos_attach makes the program's standard streams, starts the agent, and returns the program's
// end of the control channel; -1 if it can't.
int nanos_attach(void);
int nanos_attached(void);

// nanos_take_signals handles the signals that would end Node: the agent learns about them before the
// end. nanos_take_free_signals (process.c) does the same from now on for fatal signals that the
// program does not handle.
void nanos_take_signals(void);
void nanos_take_free_signals(void);

// nanos_on_stack runs main on a stack of Linux's size, and returns main's result (limits.c).
int nanos_on_stack(int (*main)(int, char **, char **), int argc, char **argv, char **env);

// nanos_unveil restricts the program to permissions (from r, w, x and c) on a path and everything
// below it. Two NULLs make the restrictions final.
void nanos_unveil(const char *path, const char *permissions);

// nanos_end tells the agent how the program ends, and waits until the host has received everything
// and kills the machine. It is safe in a signal handler. Without an agent it returns.
void nanos_end(int code, int sig);

// nanos_signal ends the program as the signal sig does.
void nanos_signal(int sig);

// nanos_lacks reports on the console that the program asked for something that Nanos lacks. The host
// then names the kernel that has it.
void nanos_lacks(const char *what);

// nanos_session makes the agent's conversation a session's conversation. The session's program is a
// thread (session.c). -1 if it can't.
struct agent;
int nanos_session(struct agent *a);

// nanos_interprets declares the program the session's interpreter. The session calls interrupt to end
// a step, at the next event or by force. fds gets the descriptors for code and for answers. -1 if
// there is no session.
int nanos_interprets(int fds[2], void (*interrupt)(bool force));

// nanos_reset resets the program's connections to the outside (streams.c).
void nanos_reset(void);

// nanos_relayed tests whether connections to this port of the loopback go to the gateway.
int nanos_relayed(uint16_t port);

#pragma GCC visibility pop

#endif
