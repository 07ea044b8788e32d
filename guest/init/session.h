// The program of a session (session.c): what starts its commands and interpreters.
#ifndef UNITASK_SESSION_H
#define UNITASK_SESSION_H

// session_run carries frames between the host, at standard input and output, and the
// commands that it starts (../session/session.go has the format). become makes a process
// that of the code's user. It returns when the host has no more.
void session_run(void (*become)(void));

// session_file is a command of the session's own, about files: its arguments are a verb, a
// path and what the verb takes. It returns the exit code: 0, or an errno.
int session_file(char **argv);

// session_connect is another: it carries a connection to a port of the machine (sessionforward.c).
int session_connect(const char *port);

#endif
