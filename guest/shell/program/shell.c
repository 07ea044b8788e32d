// What waits for the start in an image of the shell. It is told which file to run and
// becomes `bash FILE`: the shell itself has nothing to wait with. A rehearsal runs bash in
// a process of its own.
#define _GNU_SOURCE
#include "../../start/start.h"

#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
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
	close(START_CTL);
	start_exec(PROGRAM, argv, s->env);
}

static void rehearse(struct start *s)
{
	pid_t pid = fork();
	if (pid == 0)
		become(s);
	int status = 0;
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid < 0 || status != 0) {
		dprintf(STDERR_FILENO, "unitask: the shell's rehearsal ended with status %d\n", status);
		_exit(EXIT_UNKNOWN);
	}
}

int main(void)
{
	struct start s;
	start_take(&s, rehearse);
	become(&s);
}
