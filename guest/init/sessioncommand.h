// A session's program's data about a command (session.c), for the code that starts commands.
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

// pending is input that a command has not read yet. The host sends no more before that.
struct pending {
	int fd;  // its destination: the stream, except for descriptor 3 on Nanos
	uint8_t *p;
	size_t off, len;
	int end;  // and then end of file
};

struct command {
	uint32_t id;
	pid_t pid;  // 0: the slot is free; on Nanos a number
	int fd[STREAMS];
	int terminal;
	int tell_pid;  // the host wants to know the pid
	int why;  // where it reports that it could not start; -1 when it has started
	int over;  // it has ended and the host knows; its remaining processes may still print
	int last;  // at its end, the remaining processes of its group are killed
	struct pending to[2];  // IN, CTL
};

static inline unsigned get16(const uint8_t *p) { return (unsigned)(p[0] << 8 | p[1]); }

// strings parses n strings, each with a NUL after it, and returns the text after them; NULL if
// there are fewer. There is a NUL at end.
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
