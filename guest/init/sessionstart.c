// The part of a session's program for linux: starts a command with its streams or its terminal, and
// notices its end.
#define _GNU_SOURCE
#include "../contract/contract.h"
#include "session.h"
#include "sessioncommand.h"
#include "sessionmore.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static void (*become)(int flags);  // gives a process its rights
static uid_t owner;  // the owner of the commands' streams
static int children;  // readable when a child process has ended

static int open_terminal(int *end, unsigned columns, unsigned rows)
{
	struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = (unsigned short)rows};
	int unlocked = 0, number = -1;
	char path[32];
	int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	if (master < 0 || ioctl(master, TIOCSPTLCK, &unlocked) < 0 || ioctl(master, TIOCGPTN, &number) < 0) {
		if (master >= 0)  // root of a container's image has replaced the device
			close(master);
		return -1;
	}
	snprintf(path, sizeof path, "/dev/pts/%d", number);
	*end = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	struct termios t;
	if (*end < 0 || fchown(*end, owner, owner) < 0 || tcgetattr(*end, &t) < 0) {
		close(master);
		if (*end >= 0)
			close(*end);
		*end = -1;  // then start starts no command
		return -1;
	}
	t.c_iflag |= IUTF8;
	tcsetattr(*end, TCSANOW, &t);
	ioctl(*end, TIOCSWINSZ, &size);
	return master;
}

static struct file_command file = {.in = STDIN_FILENO, .out = STDOUT_FILENO};

static void cut(int sig)
{
	if (file.at[0])
		unlink(file.at);
	_exit(128 + sig);
}

static int file_command(char **argv)
{
	if (argv[1] && !argv[2] && strcmp(argv[0], "connect") == 0)
		return session_connect(argv[1]);
	file.argv = argv;
	signal(SIGINT, cut);
	int failed = session_more(&file);
	return failed < 0 ? session_file(&file) : failed;
}

// child becomes the command, and reports an error on the descriptor why.
static void child(int fds[4], int flags, int why, const char *cwd, char **argv, char **env)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	why = fcntl(why, F_DUPFD_CLOEXEC, 32);
	int n = flags & EXEC_CONTROL ? 4 : 3;
	for (int i = 0; i < n; i++)
		fds[i] = fcntl(fds[i], F_DUPFD, 32);
	for (int i = 0; i < n; i++)
		dup2(fds[i], i);
	if (n == 3)
		close(3);
	syscall(SYS_close_range, 4, why - 1, 0);
	syscall(SYS_close_range, why + 1, ~0U, 0);
	setsid();
	if (flags & EXEC_TERMINAL)
		ioctl(STDIN_FILENO, TIOCSCTTY, 0);
	become(flags);
	int failed = 0;
	if (chdir(*cwd ? cwd : WORK_DIR) < 0) {
		failed = errno;
	} else if (flags & EXEC_BUILTIN) {
		close(why);
		_exit(file_command(argv));
	} else {
		environ = env;
		execvpe(argv[0], argv, env);
		failed = errno;
	}
	ssize_t w = write(why, &failed, sizeof failed);
	(void)w;
	_exit(EXIT_NO_EXEC);
}

static int start(struct command *c, uint32_t id, uint8_t *p, size_t n)
{
	static char *argv[MAX_LISTED + 1], *env[MAX_LISTED + 1];
	if (n < EXEC_HEAD || get16(p + 5) == 0)
		return EINVAL;
	int flags = p[0];
	const char *end = (char *)p + n;
	char *cwd, *rest = strings((char *)p + EXEC_HEAD, end, argv, 1);
	cwd = argv[0];
	if (rest == NULL || (rest = strings(rest, end, argv, get16(p + 5))) == NULL || strings(rest, end, env, get16(p + 7)) == NULL)
		return E2BIG;

	// ours[i] is our end of a stream, theirs[i] the command's.
	int ours[STREAMS] = {-1, -1, -1, -1}, theirs[STREAMS] = {-1, -1, -1, -1}, why[2] = {-1, -1}, pair[2], failed = 0;
	if (flags & EXEC_TERMINAL) {
		ours[OUT] = open_terminal(&theirs[IN], get16(p + 1), get16(p + 3));
		ours[IN] = fcntl(ours[OUT], F_DUPFD_CLOEXEC, 3);
		theirs[OUT] = fcntl(theirs[IN], F_DUPFD_CLOEXEC, 3);
		theirs[ERR] = fcntl(theirs[IN], F_DUPFD_CLOEXEC, 3);
	} else {
		for (int i = IN; i <= ERR; i++) {
			if (i == CTL || pipe2(pair, O_CLOEXEC) < 0)
				continue;
			ours[i] = pair[i == IN], theirs[i] = pair[i != IN];
			// The user owns the pipe, so that the code can open /dev/stdout and similar files.
			if (fchown(pair[0], owner, owner) < 0)
				failed = errno;
		}
	}
	if (flags & EXEC_CONTROL && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0)
		ours[CTL] = pair[0], theirs[CTL] = pair[1];
	pid_t pid = -1;
	if (failed == 0 && theirs[IN] >= 0 && theirs[OUT] >= 0 && theirs[ERR] >= 0 && !(flags & EXEC_CONTROL && theirs[CTL] < 0) && pipe2(why, O_CLOEXEC) == 0)
		pid = fork();
	if (pid == 0) {
		int fds[4] = {theirs[IN], theirs[OUT], theirs[ERR], theirs[CTL]};
		child(fds, flags, why[1], cwd, argv, env);
	}
	if (pid < 0)
		failed = errno ? errno : EAGAIN;
	for (int i = 0; i < STREAMS; i++)
		if (theirs[i] >= 0)
			close(theirs[i]);
	if (why[1] >= 0)
		close(why[1]);
	if (failed != 0) {
		if (why[0] >= 0)
			close(why[0]);
		for (int i = 0; i < STREAMS; i++)
			if (ours[i] >= 0)
				close(ours[i]);
		return failed;
	}
	*c = (struct command){.id = id, .pid = pid, .terminal = flags & EXEC_TERMINAL, .tell_pid = flags & EXEC_TELL_PID, .why = why[0]};
	fcntl(c->why, F_SETFL, O_NONBLOCK);
	for (int i = 0; i < STREAMS; i++) {
		c->fd[i] = ours[i];
		if (ours[i] >= 0)
			fcntl(ours[i], F_SETFL, fcntl(ours[i], F_GETFL) | O_NONBLOCK);
	}
	c->to[IN].fd = c->fd[IN], c->to[CTL].fd = c->fd[CTL];
	return 0;
}

static void signal_command(struct command *c, int sig)
{
	if (kill(-c->pid, sig) < 0 && !c->over)
		kill(c->pid, sig);  // the command has no group yet
}

// reap reports the commands that have ended. session_ended sends their output first.
static void reap(void)
{
	struct signalfd_siginfo info;
	ssize_t n = read(children, &info, sizeof info);
	(void)n;
	int status;
	for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
		session_ended(pid, WIFSIGNALED(status) ? (uint32_t)WTERMSIG(status) << 8 : (uint32_t)WEXITSTATUS(status));
}

void session_run(void (*rights)(int flags), uid_t user)
{
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	signal(SIGPIPE, SIG_IGN);
	become = rights, owner = user;
	children = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (children < 0) {
		dprintf(STDERR_FILENO, "unitask: session: signalfd: %s\n", strerror(errno));
		_exit(EXIT_UNKNOWN);
	}
	struct session linux_session = {.in = STDIN_FILENO, .out = STDOUT_FILENO, .log = STDERR_FILENO, .event = children, .start = start, .signal = signal_command, .ended = reap, .end = _exit};
	session_serve(&linux_session);
}
