// Waits for the start in an image of Go. The start names the file to run. The program then does
// what `go run FILE` does, or becomes `go run`.
//
// The image has a read-only build cache of the standard library. Before the first start, the program
// links the cache's files into the folder where Go reads and writes its cache.
//
// A start may bring the code as a program that an earlier machine compiled. This program then runs
// it as `go run` does. A start may also request the compiled code. Then a second process of this
// program takes the code's place; if the go command compiles, `go run -exec` starts that process. It
// sends the compiled code to the agent, waits until the host has it, and becomes it.
#define _GNU_SOURCE
#include "build.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GO GO_BIN "/go"
#define SELF LIB_DIR "/start"
#define SHELL "/usr/bin/busybox"
#define STD_CACHE GO_ROOT "/cache"
#define CACHE HOME_DIR "/.cache/go-build"
#define CHECK UNITASK_DIR "/check.go" // run instead of the code, to check it

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

// link_cache links the image's build cache. Without the links Go compiles what it needs.
static void link_cache(void)
{
	static const char *const dirs[] = {HOME_DIR "/.cache", CACHE, HOME_DIR "/.config", HOME_DIR "/.config/go", HOME_DIR "/.config/go/telemetry", NULL};
	make_folders(dirs);
	// Disable Go's counters, and the process that would send them.
	put(HOME_DIR "/.config/go/telemetry/mode", "off\n");
	for (int i = 0; i < 256; i++) {
		char from[128], to[128];
		snprintf(from, sizeof from, STD_CACHE "/%02x", i);
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

// hand_out sends a program to the agent for the host, and becomes the program. argv is its path and
// its arguments. Instead of a program that is too large, hand_out sends an empty one.
static void hand_out(char **argv, char **env)
{
	uint8_t head[1 + sizeof(uint32_t)] = {CONTROL_PROGRAM};
	uint32_t size = 0;
	struct stat st;
	int fd = open(argv[0], O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size <= MAX_PROGRAM)
		size = (uint32_t)st.st_size;
	uint32_t n = htonl(size);
	memcpy(head + 1, &n, sizeof n);
	if (send(start_ctl, head, sizeof head, 0) != sizeof head)
		_exit(EXIT_UNKNOWN);
	while (size > 0) {
		ssize_t sent = sendfile(start_ctl, fd, NULL, size);
		if (sent <= 0 && !(sent < 0 && errno == EINTR))
			_exit(EXIT_UNKNOWN);
		size -= sent > 0 ? (uint32_t)sent : 0;
	}
	char word;
	ssize_t r;
	while ((r = read(start_ctl, &word, 1)) < 0 && errno == EINTR)
		;
	if (r != 1 || word != CONTROL_CONTINUE)
		_exit(EXIT_UNKNOWN);
	close(start_ctl);
	close(fd);
	start_exec(argv[0], argv, env);
}

// environment returns the code's environment as in go run, where Go's own programs are first in PATH.
static char **environment(char **env)
{
	static const char variable[] = "PATH=" GO_BIN;
	const char *path = "";
	char **to = env, *last[2] = {NULL, NULL};
	for (char **from = env; *from; from++)
		if (strncmp(*from, "PATH=", 5) == 0)
			path = *from + 5;
		else
			*to++ = *from;
	*to = NULL;
	if ((last[0] = malloc(sizeof variable + 1 + strlen(path))) == NULL)
		_exit(EXIT_UNKNOWN);
	sprintf(last[0], "%s%s%s", variable, *path ? ":" : "", path);
	return start_join("", env, last) + 1;
}

// ended_by prints how a program ended, as Go does.
static void ended_by(int status)
{
	static const char *const names[] = {
		NULL, "hangup", "interrupt", "quit", "illegal instruction", "trace/breakpoint trap", "aborted", "bus error", "floating point exception",
		"killed", "user defined signal 1", "segmentation fault", "user defined signal 2", "broken pipe", "alarm clock", "terminated",
		"stack fault", "child exited", "continued", "stopped (signal)", "stopped", "stopped (tty input)", "stopped (tty output)",
		"urgent I/O condition", "CPU time limit exceeded", "file size limit exceeded", "virtual timer expired", "profiling timer expired",
		"window changed", "I/O possible", "power failure", "bad system call",
	};
	int n = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	if (n == 0)
		dprintf(STDERR_FILENO, "exit status %d\n", WEXITSTATUS(status));
	else if ((size_t)n < sizeof names / sizeof *names)
		dprintf(STDERR_FILENO, "signal: %s\n", names[n]);
	else
		dprintf(STDERR_FILENO, "signal: signal %d\n", n);
}

// survived tests whether go run survives a signal. SIGINT and SIGQUIT are for the code. A Go program
// ignores a signal that it has not asked for, if Go's runtime has no default for the signal (sigtable
// in sigtab_linux_generic.go).
static int survived(int n)
{
	static const int deadly[] = {SIGHUP, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM, SIGSTKFLT, SIGSYS, SIGCHLD, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT};
	for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++)
		if (n == deadly[i])
			return 0;
	return 1;
}

// run_compiled does what go run does after compiling.
static void run_compiled(struct start *s, char *program, int hand)
{
	int status = 0;
	s->argv[0] = program;
	s->env = environment(s->env);
	pid_t pid = hand ? fork() : vfork();  // nothing of this process needs to be copied
	if (pid == 0 && hand)
		hand_out(s->argv, s->env);
	if (pid == 0)
		start_exec(program, s->argv, s->env);
	if (hand)
		close(start_ctl);
	for (int n = 1; n <= SIGRTMAX; n++)
		if (survived(n))
			signal(n, SIG_IGN);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid < 0)
		_exit(EXIT_UNKNOWN);
	if (program != s->compiled)
		build_drop(program);
	if (status != 0)
		ended_by(status);
	_exit(status != 0);
}

static int by_go;  // rehearse the go command: the files that it reads should be in memory, too

static void become(struct start *s)
{
	char *run[] = {"run", NULL}, *keep[] = {"run", "-exec=" SELF " " HAND_OUT, NULL}, *none[] = {NULL}, now[32];
	int hand = s->compiled && strcmp(s->compiled, HAND_OUT) == 0;
	if (s->rehearsal) {  // a rehearsal's file is a link without .go, and its environment has no HOME
		s->argv[0] = realpath(s->argv[0], NULL);
		s->env = environ;
	}
	if (s->argv[0] == NULL)
		_exit(EXIT_UNKNOWN);
	int check = strcmp(s->argv[0], CHECK) == 0;
	char **argv = check ? start_join("sh", none, s->argv) : start_join("go", hand ? keep : run, s->argv);
	start_trust(s);
	if (chdir(s->cwd) < 0)
		_exit(EXIT_UNKNOWN);
	if (!s->rehearsal)
		start_word(CONTROL_STARTED);
	char *program = s->compiled && !hand ? s->compiled : check || by_go ? NULL : build(s);
	if (!hand)
		close(start_ctl);
	if (program)
		run_compiled(s, program, hand);
	// Mark Go's cache as just trimmed: the image's files are old.
	snprintf(now, sizeof now, "%lld", (long long)time(NULL));
	put(CACHE "/trim.txt", now);
	start_exec(check ? SHELL : GO, argv, s->env);
}

// rehearse compiles and runs the rehearsal's program. That takes long, so only some rehearsals do it:
// the first and the last one before a snapshot, and all in a clone.
static void rehearse(struct start *s)
{
	static int first = 1, cloned;
	int last = strcmp(s->rehearsal, "last") == 0;
	if (!first && !last && !cloned)
		return;
	by_go = first;
	first = 0;
	cloned |= last;
	start_rehearse(s, become, "Go");
	by_go = 0;
}

int main(int argc, char **argv)
{
	struct start s;
	if (argc > 2 && strcmp(argv[1], HAND_OUT) == 0)
		hand_out(argv + 2, environ);
	link_cache();
	start_take(&s, rehearse);
	become(&s);
}
