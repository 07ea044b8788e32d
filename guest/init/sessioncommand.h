// The data about a command that session.c keeps, for the code that starts commands.
#ifndef UNITASK_SESSIONCOMMAND_H
#define UNITASK_SESSIONCOMMAND_H

#include "../contract/contract.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

enum {
	IN,  // the command's standard input, or its terminal
	CTL,
	OUT,
	ERR,
	STREAMS,
};

// pending is input that a command has not read yet. The host sends more only when it has read all.
struct pending {
	int fd;  // its destination: the command's stream, except for descriptor 3 on Nanos
	uint8_t *p;
	size_t off, len;
	int end;  // end of file follows
};

struct command {
	uint32_t id;
	pid_t pid;  // 0: the slot is free. On Nanos this is only a number
	int fd[STREAMS];
	int terminal;
	int tell_pid;  // the host wants to know the pid
	int why;  // the command reports here that it could not start; -1 when it has started
	int over;  // the command has ended and the host knows; remaining processes may still print
	int last;  // kill the remaining processes of the group when the command ends
	struct pending to[2];  // IN, CTL
};

static inline unsigned get16(const uint8_t *p) { return (unsigned)(p[0] << 8 | p[1]); }

// strings parses n strings, each with a NUL after it, and returns the text after them; NULL if
// there are fewer. *end must be a NUL.
static inline char *strings(char *p, const char *end, char **list, unsigned n)
{
	if (n > MAX_LISTED)
		return NULL;
	for (unsigned i = 0; i < n; i++) {
		if (p >= end)
			return NULL;
		list[i] = p;
		p += strlen(p) + 1;
	}
	list[n] = NULL;
	return p;
}

enum { EXEC_HEAD = 9 };  // bytes before the strings of a command's start

#endif
