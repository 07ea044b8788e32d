// In the place of libc: the functions that Nanos has no system call for, or gets
// wrong. They stand before libc's own by LD_PRELOAD, on linux too, where all but
// mkdtemp pass the call on.
#define _GNU_SOURCE
#include "nanos.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// kill: a fatal signal to ourselves that nobody handles, SIGKILL above all, would
// end the machine before what was printed is out.
int kill(pid_t pid, int sig)
{
	static const int harmless[] = {SIGCHLD, SIGCONT, SIGURG, SIGWINCH};
	struct sigaction now;
	int ours = pid == getpid() || pid == 0, fatal = sig > 0;
	for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
		fatal = fatal && sig != harmless[i];
	if (ours && fatal && nanos_attached() &&
	    (sig == SIGKILL || (sigaction(sig, NULL, &now) == 0 && now.sa_handler == SIG_DFL)))
		nanos_signal(sig);
	return (int)syscall(SYS_kill, pid, sig);
}

// random_port gives a socket that has no port yet a random one: the kernel counts them
// up, and the clones of one template would all have the same.
static void random_port(int fd)
{
	struct sockaddr_in me = {0};
	socklen_t len = sizeof me;
	uint16_t random;
	if (getsockname(fd, (struct sockaddr *)&me, &len) < 0 || me.sin_family != AF_INET || me.sin_port != 0)
		return;
	for (int tries = 0; tries < 8 && getrandom(&random, sizeof random, 0) == sizeof random; tries++) {
		me.sin_port = htons((uint16_t)(32768 + random % 28232));
		if (bind(fd, (struct sockaddr *)&me, sizeof me) == 0)
			return;
	}
}

int connect(int fd, const struct sockaddr *to, socklen_t len)
{
	struct sockaddr_in in;
	if (to != NULL && to->sa_family == AF_INET && is_nanos())
		random_port(fd);
	if (to != NULL && len >= sizeof in && to->sa_family == AF_INET) {
		memcpy(&in, to, sizeof in);
		if (ntohl(in.sin_addr.s_addr) >> 24 == 127 && nanos_relayed(ntohs(in.sin_port))) {
			in.sin_addr.s_addr = inet_addr(GATEWAY_IP);
			return (int)syscall(SYS_connect, fd, &in, sizeof in);
		}
	}
	return (int)syscall(SYS_connect, fd, to, len);
}

// A refused connection comes as a reset one; libuv asks for it only then.
int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	int result = (int)syscall(SYS_getsockopt, fd, level, name, value, len);
	if (result == 0 && level == SOL_SOCKET && name == SO_ERROR && *(int *)value == ECONNRESET && is_nanos())
		*(int *)value = ECONNREFUSED;
	return result;
}

// There are no modes, so the mask is only remembered.
mode_t umask(mode_t mask)
{
	static _Atomic mode_t now = 022;
	return is_nanos() ? atomic_exchange(&now, mask & 0777) : (mode_t)syscall(SYS_umask, mask);
}

pid_t getppid(void) { return is_nanos() ? 1 : (pid_t)syscall(SYS_getppid); }

// V8 asks for each worker, and complains on stderr when it can't be told.
int pthread_getschedparam(pthread_t thread, int *policy, struct sched_param *param)
{
	int (*real)(pthread_t, int *, struct sched_param *) =
		(int (*)(pthread_t, int *, struct sched_param *))dlsym(RTLD_NEXT, "pthread_getschedparam");
	if (!is_nanos() && real)
		return real(thread, policy, param);
	*policy = SCHED_OTHER;
	param->sched_priority = 0;
	return 0;
}

// mkdtemp: glibc's makes its first name from the monotonic clock and a stack address,
// which the clones of one template share; this one asks the kernel's generator.
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

// getifaddrs: Nanos leaves what was on the stack behind an interface's name.
int getifaddrs(struct ifaddrs **list)
{
	int (*real)(struct ifaddrs **) = (int (*)(struct ifaddrs **))dlsym(RTLD_NEXT, "getifaddrs");
	int result = real ? real(list) : -1;
	for (struct ifaddrs *i = result == 0 ? *list : NULL; i; i = i->ifa_next)
		for (char *c = i->ifa_name; c && *c; c++)
			if (is_nanos() && !isalnum((unsigned char)*c))
				*c = 0;
	return result;
}
