// What a session's program knows of a command (session.c), and its start (sessionstart.c).
#ifndef UNITASK_SESSIONCOMMAND_H
#define UNITASK_SESSIONCOMMAND_H

#include <stddef.h>
#include <stdint.h>
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
	uint8_t *p;
	size_t off, len;
	int end;  // and then there is no more
};

struct command {
	uint32_t id;
	pid_t pid;  // 0: the slot is free
	int fd[STREAMS];
	int terminal;
	int why;  // where it says why it could not start; -1 when it has
	int over;  // it has ended and the host knows; what it left running may go on printing
	struct pending to[2];  // IN, CTL
};

static inline unsigned get16(const uint8_t *p) { return (unsigned)(p[0] << 8 | p[1]); }

// session_start starts a command: flags:1 columns:2 rows:2 arguments:2 variables:2, its folder, its
// arguments, its environment. It returns an errno.
int session_start(struct command *c, uint32_t id, uint8_t *p, size_t n, void (*become)(void));

#endif
