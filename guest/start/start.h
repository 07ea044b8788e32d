// The interface to take a start from the agent, by the control channel, for a language's first
// program. ../frame.go describes the wire format, and ../start.go a start.
#ifndef UNITASK_START_H
#define UNITASK_START_H

#include "../contract/contract.h"

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

extern int start_ctl;  // the control channel's descriptor: 3 as from init, or set by the program

struct start {
	char **argv;       // the main file and the arguments
	char **env;        // strings NAME=VALUE
	char **flags;      // the language's own arguments
	char **read_only;  // paths that the code may not write to, for a kernel without users
	char *cwd;
	char *ca;          // certificates in PEM, or NULL
	char *rehearsal;   // the rehearsal's kind, or NULL for a run
	char *compiled;  // HAND_OUT, or the path of the code that was compiled before, or NULL
	uint8_t entropy[ENTROPY_SIZE];
	char *text;  // the memory of all strings
};

// start_take reports that the program is up, and waits for the start of a run. For each start of a
// rehearsal before that, start_take calls rehearse (unless NULL), and removes the rehearsal's folder
// with its files. If the agent is gone or a start is malformed, start_take ends the program.
void start_take(struct start *s, void (*rehearse)(struct start *));
// start_rehearse calls become in a child process, and waits for that process. If the process fails,
// start_rehearse ends the program, with a message that names the language.
void start_rehearse(struct start *s, void (*become)(struct start *), const char *language);
// start_free frees the start's memory.
void start_free(struct start *s);
// start_word sends a letter to the agent.
void start_word(char word);
// start_trust makes TLS clients also trust the start's certificates. It adds variables to the start's
// environment that name files with the certificates.
void start_trust(struct start *s);
// start_exec becomes another program, and does not return.
void start_exec(const char *path, char **argv, char **env);
// start_join returns a string and two lists as one list.
char **start_join(const char *first, char **a, char **b);

#pragma GCC visibility pop

#endif
