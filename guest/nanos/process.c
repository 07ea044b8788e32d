// Processes and signals for a program that, unlike Node, has no signal handlers. A fatal signal
// would end the machine before all output is sent. A start of another process is reported as
// something that Nanos lacks. No library for linux contains this file.
#define _GNU_SOURCE
#include "calls.h"
#include "nanos.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

// ends tests whether a signal ends a process by default, and can have a handler. SIGKILL can't have
// one. Nanos also sends SIGBUS when no memory is left, not even for a handler, and only reports it on
// the console.
static bool ends(int sig)
{
	static const int others[] = {SIGKILL, SIGSTOP, SIGBUS, SIGCHLD, SIGCONT, SIGURG, SIGWINCH, SIGTSTP, SIGTTIN, SIGTTOU};
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (sig == others[i])
			return false;
	return sig > 0 && sig < NSIG;
}

static int next_sigaction(int sig, const struct sigaction *to, struct sigaction *was)
{
	static int (*next)(int, const struct sigaction *, struct sigaction *);
	if (next == NULL)
		next = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
	return next(sig, to, was);
}

// sigaction lets nanos_signal handle signals with their default action, without the program noticing.
int sigaction(int sig, const struct sigaction *to, struct sigaction *was)
{
	struct sigaction ours;
	if (to && to->sa_handler == SIG_DFL && nanos_attached() && ends(sig)) {
		ours = (struct sigaction){.sa_handler = nanos_signal, .sa_flags = SA_ONSTACK};
		to = &ours;
	}
	int r = next_sigaction(sig, to, was);
	if (r == 0 && was && was->sa_handler == nanos_signal)
		*was = (struct sigaction){.sa_handler = SIG_DFL};
	return r;
}

void nanos_take_free_signals(void)
{
	static uint8_t stack[64 << 10];  // for a signal when the other stack is full
	struct sigaction now;
	sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
	for (int sig = 1; sig < SIGRTMIN; sig++)
		if (ends(sig) && next_sigaction(sig, NULL, &now) == 0 && now.sa_handler == SIG_DFL)
			sigaction(sig, &now, NULL);
}

// maybe_killed ends the program for a signal that can't have a handler.
static void maybe_killed(int sig)
{
	if (sig == SIGKILL && nanos_attached())
		nanos_signal(sig);
}

int raise(int sig)
{
	int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "raise");
	maybe_killed(sig);
	return next(sig);
}

int pthread_kill(pthread_t thread, int sig)
{
	int (*next)(pthread_t, int) = (int (*)(pthread_t, int))dlsym(RTLD_NEXT, "pthread_kill");
	maybe_killed(sig);
	return next(thread, sig);
}

__attribute__((noreturn)) void _exit(int code)
{
	nanos_end(code & 0xff, 0);
	for (;;)
		call(SYS_exit_group, code);
}

__attribute__((noreturn)) void _Exit(int code) { _exit(code); }

// Other programs and processes --------------------------------------------------

pid_t vfork(void) { return fork(); }

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, char *const argv[], char *const env[])
{
	(void)pid, (void)path, (void)actions, (void)attributes, (void)argv, (void)env;
	fork();
	return errno;
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes, char *const argv[], char *const env[])
{
	return posix_spawn(pid, file, actions, attributes, argv, env);
}

int system(const char *command) { return command ? fork() : 0; }

int execve(const char *path, char *const argv[], char *const env[])
{
	(void)path, (void)argv, (void)env;
	nanos_lacks("other programs");
	return fail(ENOSYS);
}

int execv(const char *path, char *const argv[]) { return execve(path, argv, environ); }

int fexecve(int fd, char *const argv[], char *const env[])
{
	(void)fd;
	return execve("", argv, env);
}

// There are no children. The kernel would wrongly report that no child has ended yet.
pid_t wait4(pid_t pid, int *status, int options, struct rusage *used)
{
	(void)pid, (void)status, (void)options, (void)used;
	return fail(ECHILD);
}

pid_t wait3(int *status, int options, struct rusage *used) { return wait4(-1, status, options, used); }
pid_t waitpid(pid_t pid, int *status, int options) { return wait4(pid, status, options, NULL); }
pid_t wait(int *status) { return wait4(-1, status, 0, NULL); }

int waitid(idtype_t type, id_t id, siginfo_t *info, int options)
{
	(void)type, (void)id, (void)info, (void)options;
	return fail(ECHILD);
}

// The process leads its group and its session.
static pid_t leader(pid_t pid) { return pid == 0 || pid == getpid() ? getpid() : fail(ESRCH); }

pid_t getpgrp(void) { return getpid(); }
pid_t getpgid(pid_t pid) { return leader(pid); }
pid_t getsid(pid_t pid) { return leader(pid); }
pid_t setsid(void) { return fail(EPERM); }
