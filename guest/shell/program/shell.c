// Waits for the start in an image of the shell, because bash itself can't wait. The start names the
// file to run, and the program becomes `bash FILE`. A rehearsal runs bash in a separate process.
#define _GNU_SOURCE
#include "../../start/start.h"

#include <unistd.h>

#define PROGRAM "/usr/bin/bash"

static void become(struct start *s)
{
	char **argv = start_join("bash", s->flags, s->argv);
	start_trust(s);
	if (chdir(s->cwd) < 0)
		_exit(EXIT_UNKNOWN);
	if (!s->rehearsal)
		start_word(CONTROL_STARTED);
	close(start_ctl);
	start_exec(PROGRAM, argv, s->env);
}

static void rehearse(struct start *s)
{
	start_rehearse(s, become, "the shell");
}

int main(void)
{
	struct start s;
	start_take(&s, rehearse);
	become(&s);
}
