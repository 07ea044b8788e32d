// What is Nanos's own among the guest's programs: the agent in a thread of the
// program (nanos.c) and the functions that stand before libc's (libc.c).
#ifndef UNITASK_NANOS_H
#define UNITASK_NANOS_H

#include "../contract/contract.h"

#include <stdint.h>

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

// nanos_relayed says that connections to this port of the loopback go to the gateway.
int nanos_relayed(uint16_t port);

#endif
