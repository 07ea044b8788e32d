// What waits for the start in an image of Go. It is told which file to run and becomes
// `go run FILE`.
//
// The image has a build cache of the standard library, which can only be read. Before the
// first start links to its files are put where Go looks for them and writes its own.
#define _GNU_SOURCE
#include "../../start/start.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define GO "/usr/local/go/bin/go"
#define SHELL "/usr/bin/busybox"
#define WARM "/usr/local/go/cache"
#define CACHE HOME_DIR "/.cache/go-build"
#define CHECK UNITASK_DIR "/check.go" // what is run in the place of the code to check it

static void put(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		dprintf(STDERR_FILENO, "unitask: start: %s: %s\n", file, strerror(errno));
	if (fd >= 0)
		close(fd);
}

static void make_folders(const char *const *dirs)
{
	for (; *dirs; dirs++)
		mkdir(*dirs, 0755);
}

// link_cache makes the links. Without them Go compiles what it needs.
static void link_cache(void)
{
	static const char *const dirs[] = {HOME_DIR "/.cache", CACHE, HOME_DIR "/.config", HOME_DIR "/.config/go", HOME_DIR "/.config/go/telemetry", NULL};
	make_folders(dirs);
	// Counters, and a process that would send them.
	put(HOME_DIR "/.config/go/telemetry/mode", "off\n");
	for (int i = 0; i < 256; i++) {
		char from[128], to[128];
		snprintf(from, sizeof from, WARM "/%02x", i);
		snprintf(to, sizeof to, CACHE "/%02x", i);
		DIR *d = opendir(from);
		if (d == NULL || mkdir(to, 0755) < 0) {
			if (d)
				closedir(d);
			continue;
		}
		for (struct dirent *e; (e = readdir(d)) != NULL;) {
			char target[512], link[512];
			if (e->d_name[0] == '.')
				continue;
			snprintf(target, sizeof target, "%s/%s", from, e->d_name);
			snprintf(link, sizeof link, "%s/%s", to, e->d_name);
			if (symlink(target, link) < 0)
				dprintf(STDERR_FILENO, "unitask: start: %s: %s\n", link, strerror(errno));
		}
		closedir(d);
	}
}

static void become(struct start *s)
{
	char *run[] = {"run", NULL}, *none[] = {NULL}, now[32];
	if (s->rehearsal) {  // its file is a link without .go, and its environment has no HOME of its own
		s->argv[0] = realpath(s->argv[0], NULL);
		s->env = environ;
	}
	if (s->argv[0] == NULL)
		_exit(EXIT_UNKNOWN);
	int check = strcmp(s->argv[0], CHECK) == 0;
	char **argv = check ? start_join("sh", none, s->argv) : start_join("go", run, s->argv);
	start_trust(s);
	if (chdir(s->cwd) < 0)
		_exit(EXIT_UNKNOWN);
	// When Go has last looked for what is old in its cache: the files of the image are.
	snprintf(now, sizeof now, "%lld", (long long)time(NULL));
	put(CACHE "/trim.txt", now);
	if (!s->rehearsal)
		start_word(CONTROL_STARTED);
	close(start_ctl);
	start_exec(check ? SHELL : GO, argv, s->env);
}

// rehearse compiles and runs its program: the first and the last one before a snapshot, which take
// long, and each one of a clone.
static void rehearse(struct start *s)
{
	static int first = 1, cloned;
	int last = strcmp(s->rehearsal, "last") == 0;
	if (!first && !last && !cloned)
		return;
	first = 0;
	cloned |= last;
	start_rehearse(s, become, "Go");
}

int main(void)
{
	struct start s;
	link_cache();
	start_take(&s, rehearse);
	become(&s);
}
