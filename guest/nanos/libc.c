// Replaces libc functions whose system call Nanos lacks or does wrong. LD_PRELOAD gives the
// replacements precedence over libc's own. On linux all but mkdtemp pass the call on. files.c has the
// functions for files, sockets.c those for sockets.
#define _GNU_SOURCE
#include "calls.h"
#include "nanos.h"

#include <ctype.h>
#include <dlfcn.h>
#include <grp.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

bool on_nanos;

// find_out runs before all other constructors and before Node's main.
__attribute__((constructor(101))) static void find_out(void) { on_nanos = is_nanos(); }

// kill ends the program itself when it would send a fatal signal without a handler to this process.
// The kernel would end the machine before all output is sent.
int kill(pid_t pid, int sig)
{
	static const int harmless[] = {SIGCHLD, SIGCONT, SIGURG, SIGWINCH};
	struct sigaction now = {0};
	int ours = pid == getpid() || pid == 0, fatal = sig > 0;
	for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
		fatal = fatal && sig != harmless[i];
	if (ours && fatal && nanos_attached() &&
	    (sig == SIGKILL || (sigaction(sig, NULL, &now) == 0 && now.sa_handler == SIG_DFL)))
		nanos_signal(sig);
	// Send a handled signal to the first thread, so that it ends that thread's waits.
	if (on_nanos && ours && fatal && now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN)
		return (int)result(call(SYS_tgkill, getpid(), getpid(), sig));
	return (int)result(call(SYS_kill, pid, sig));
}

pid_t fork(void)
{
	pid_t (*real)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
	if (!on_nanos && real)
		return real();
	nanos_lacks("child processes");
	return fail(ENOSYS);
}

// become accepts only root, which is the one user with the one group.
static int become(const char *name, id_t id)
{
	if (on_nanos)
		return id == 0 ? 0 : fail(EPERM);
	int (*real)(id_t) = (int (*)(id_t))dlsym(RTLD_NEXT, name);
	return real ? real(id) : fail(ENOSYS);
}

int setuid(uid_t id) { return become("setuid", id); }
int seteuid(uid_t id) { return become("seteuid", id); }
int setgid(gid_t id) { return become("setgid", id); }
int setegid(gid_t id) { return become("setegid", id); }

int getgroups(int n, gid_t *list)
{
	if (!on_nanos)
		return (int)result(call(SYS_getgroups, n, list));
	if (n > 0)
		list[0] = 0;
	return n < 0 ? fail(EINVAL) : 1;
}

int setgroups(size_t n, const gid_t *list)
{
	int (*real)(size_t, const gid_t *) = (int (*)(size_t, const gid_t *))dlsym(RTLD_NEXT, "setgroups");
	if (on_nanos)
		return n == 1 && list[0] == 0 ? 0 : fail(EPERM);
	return real ? real(n, list) : fail(ENOSYS);
}

int initgroups(const char *user, gid_t id)
{
	int (*real)(const char *, gid_t) = (int (*)(const char *, gid_t))dlsym(RTLD_NEXT, "initgroups");
	if (on_nanos)
		return id == 0 ? 0 : fail(EPERM);
	return real ? real(user, id) : fail(ENOSYS);
}

// With one process a priority has no effect, so it is only stored.
static _Atomic int priority;

int getpriority(__priority_which_t which, id_t who)
{
	if (!on_nanos) {
		long r = call(SYS_getpriority, which, who);  // the kernel returns 1 to 40, because errors are negative
		return r < 0 ? (int)result(r) : 20 - (int)r;
	}
	return which != PRIO_PROCESS || (who != 0 && who != (id_t)getpid()) ? fail(ESRCH) : priority;
}

int setpriority(__priority_which_t which, id_t who, int value)
{
	if (!on_nanos)
		return (int)result(call(SYS_setpriority, which, who, value));
	if (which != PRIO_PROCESS || (who != 0 && who != (id_t)getpid()))
		return fail(ESRCH);
	priority = value < -20 ? -20 : value > 19 ? 19 : value;
	return 0;
}

// getrusage adds the used memory, which Nanos leaves out.
int getrusage(__rusage_who_t who, struct rusage *used)
{
	static _Atomic long most;
	long r = call(SYS_getrusage, who, used);
	if (r == 0 && on_nanos) {
		long now = memory_in_use();
		if (now > most)
			most = now;
		used->ru_maxrss = most;
	}
	return (int)result(r);
}

pid_t getppid(void) { return on_nanos ? 1 : (pid_t)call(SYS_getppid); }

// V8 calls pthread_getschedparam for each worker, and prints an error to stderr if the call fails.
int pthread_getschedparam(pthread_t thread, int *policy, struct sched_param *param)
{
	int (*real)(pthread_t, int *, struct sched_param *) =
		(int (*)(pthread_t, int *, struct sched_param *))dlsym(RTLD_NEXT, "pthread_getschedparam");
	if (!on_nanos && real)
		return real(thread, policy, param);
	*policy = SCHED_OTHER;
	param->sched_priority = 0;
	return 0;
}

// mkdtemp draws names from the kernel's generator. glibc derives its first name from the monotonic
// clock and a stack address, which the clones of one template share.
char *mkdtemp(char *template)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	size_t n = strlen(template);
	uint8_t random[6];
	if (n < sizeof random || strcmp(template + n - sizeof random, "XXXXXX") != 0) {
		errno = EINVAL;
		return NULL;
	}
	for (int tries = 0; tries < 100; tries++) {
		if (getrandom(random, sizeof random, 0) != sizeof random)
			return NULL;
		for (size_t i = 0; i < sizeof random; i++)
			template[n - sizeof random + i] = letters[random[i] % (sizeof letters - 1)];
		if (mkdir(template, 0700) == 0)
			return template;
		if (errno != EEXIST)
			return NULL;
	}
	return NULL;
}

// getifaddrs removes the stack contents that Nanos leaves after an interface's name.
int getifaddrs(struct ifaddrs **list)
{
	int (*real)(struct ifaddrs **) = (int (*)(struct ifaddrs **))dlsym(RTLD_NEXT, "getifaddrs");
	int result = real ? real(list) : -1;
	for (struct ifaddrs *i = result == 0 ? *list : NULL; i; i = i->ifa_next)
		for (char *c = i->ifa_name; c && *c; c++)
			if (on_nanos && !isalnum((unsigned char)*c))
				*c = 0;
	return result;
}
