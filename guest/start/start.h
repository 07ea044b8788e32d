// What a language's first program takes from the agent: a start, by its control channel.
// The wire format is in ../frame.go; what a start holds, in ../start.go.
#ifndef UNITASK_START_H
#define UNITASK_START_H

#include "../contract/contract.h"

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)  // a module of the code's may have functions of these names

extern int start_ctl;  // the control channel: 3, where init puts it, unless the program sets another one

struct start {
	char **argv;       // the main file and the arguments
	char **env;        // NAME=VALUE each
	char **flags;      // the language's own arguments
	char **read_only;  // paths that the code may not write to, which a kernel without users is told
	char *cwd;
	char *ca;          // certificates in PEM, or NULL
	char *rehearsal;   // kind of the rehearsal, or NULL
	char *compiled;    // HAND_OUT, or the path of the program that the code was compiled to before, or NULL
	char *placed;      // its length, if it is in the place, or NULL
	uint8_t entropy[ENTROPY_SIZE];
	char *text;        // that all of it lies in
};

// start_take says that the program is up and waits for the start of a run. Before it may come
// those of rehearsals: rehearse is called for each one (NULL where there is nothing to do), and
// its folder, with the files in it, is removed. A program whose agent is gone, or is told nonsense,
// has nobody to tell: it ends.
void start_take(struct start *s, void (*rehearse)(struct start *));
// start_rehearse has a process of its own become the program of a rehearsal, and waits until it has ended
// well. Else the start ends, with what it says of the language.
void start_rehearse(struct start *s, void (*become)(struct start *), const char *language);
// start_free frees what is in it.
void start_free(struct start *s);
// start_word tells the agent a letter.
void start_word(char word);
// start_trust has TLS clients trust the start's certificates too, by files that variables
// of its environment name; the environment grows.
void start_trust(struct start *s);
// start_exec becomes a program; it does not return.
void start_exec(const char *path, char **argv, char **env);
// start_join is a string and two lists behind it, as one list.
char **start_join(const char *first, char **a, char **b);

#pragma GCC visibility pop

#endif
