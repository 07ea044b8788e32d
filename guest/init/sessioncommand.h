// What a session's program knows of a command (session.c), for what starts it.
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

// pending is what a command has not taken yet. The host sends no more before it has.
struct pending {
	int fd;  // where it is given: the stream's own, but for descriptor 3 on Nanos
	uint8_t *p;
	size_t off, len;
	int end;  // and then there is no more
};

struct command {
	uint32_t id;
	pid_t pid;  // 0: the slot is free; on Nanos a number
	int fd[STREAMS];
	int terminal;
	int why;  // where it says why it could not start; -1 when it has
	int over;  // it has ended and the host knows; what it left running may go on printing
	int last;  // what is left of its group when it ends is killed
	struct pending to[2];  // IN, CTL
};

static inline unsigned get16(const uint8_t *p) { return (unsigned)(p[0] << 8 | p[1]); }

// strings takes n strings, each with a NUL behind it, and returns what is behind them; NULL
// where there are fewer. There is a NUL at end.
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
