// Waits for the start in a machine of a container's image, and becomes the command that the start
// names. Init has started this program in the image's root, as the image's user. A rehearsal ends
// where the command would begin, because code of an image only runs for its user.
#define _GNU_SOURCE
#include "../../start/start.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOT_FOUND = 127 };  // a shell's exit code for this

// look finds a command as a shell does: a command with a slash is a path, others are in PATH.
static const char *look(const char *name, char **env)
{
	static char found[PATH_MAX];
	const char *dirs = SEARCH_PATH;
	struct stat st;
	if (strchr(name, '/'))
		return name;
	for (; *env; env++)
		if (strncmp(*env, "PATH=", 5) == 0)
			dirs = *env + 5;
	int refused = 0;
	for (const char *end; *name; dirs = end + 1) {
		end = strchrnul(dirs, ':');
		int n = snprintf(found, sizeof found, "%.*s/%s", (int)(end - dirs), dirs == end ? "." : dirs, name);
		if (n > 0 && n < (int)sizeof found && stat(found, &st) == 0 && S_ISREG(st.st_mode)) {
			if (access(found, X_OK) == 0)
				return found;
			refused = 1;
		}
		if (*end == 0)
			break;
	}
	errno = refused ? EACCES : ENOENT;
	return NULL;
}

static void become(struct start *s)
{
	start_trust(s);
	start_word(CONTROL_STARTED);  // from here on, output belongs to the run
	close(start_ctl);
	if (chdir(s->cwd) < 0) {
		dprintf(STDERR_FILENO, "unitask: the working directory %s: %s\n", s->cwd, strerror(errno));
		_exit(EXIT_NO_EXEC);
	}
	const char *path = look(s->argv[0], s->env);
	for (char **other = s->flags; path == NULL && *other; other++)  // the first interpreter that exists
		if ((path = look(*other, s->env)) != NULL)
			s->argv[0] = *other;
	if (path == NULL || access(path, F_OK) < 0) {
		int code = errno == EACCES ? EXIT_NO_EXEC : NOT_FOUND;
		dprintf(STDERR_FILENO, "unitask: %s: %s\n", s->argv[0],
			code == NOT_FOUND ? "the image has no such program" : strerror(errno));
		_exit(code);
	}
	start_exec(path, s->argv, s->env);
}

int main(void)
{
	struct start s;
	start_take(&s, NULL);
	become(&s);
}
