// A language's first program takes a start from the agent, by its control channel. ../frame.go
// describes the wire format; ../start.go describes a start.
#ifndef UNITASK_START_H
#define UNITASK_START_H

#include "../contract/contract.h"

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

extern int start_ctl;  // the control channel: 3, where init puts it, unless the program sets another one

struct start {
	char **argv;       // the main file and the arguments
	char **env;        // NAME=VALUE each
	char **flags;      // the language's own arguments
	char **read_only;  // paths that the code may not write to, for a kernel without users
	char *cwd;
	char *ca;          // certificates in PEM, or NULL
	char *rehearsal;   // kind of the rehearsal, or NULL
	char *compiled;  // HAND_OUT, or the path of the program that was compiled before, or NULL
	uint8_t entropy[ENTROPY_SIZE];
	char *text;  // the memory of all strings
};

// start_take reports that the program is up, and waits for the start of a run. Starts of rehearsals
// may come before it: start_take calls rehearse for each (unless it is NULL), and removes its
// folder with the files in it. If the agent is gone or a start is malformed, start_take ends the
// program.
void start_take(struct start *s, void (*rehearse)(struct start *));
// start_rehearse makes a separate process the program of a rehearsal, and waits for it. If that
// process fails, the start ends, with a message that names the language.
void start_rehearse(struct start *s, void (*become)(struct start *), const char *language);
// start_free frees the start's memory.
void start_free(struct start *s);
// start_word sends a letter to the agent.
void start_word(char word);
// start_trust makes TLS clients trust the start's certificates too, by files that variables of its
// environment name; the environment grows.
void start_trust(struct start *s);
// start_exec becomes another program; it does not return.
void start_exec(const char *path, char **argv, char **env);
// start_join returns a string and two lists as one list.
char **start_join(const char *first, char **a, char **b);

#pragma GCC visibility pop

#endif
