// The guest's programs on the host, for tests: the agent, the relay and the agent's
// thread of Nanos. The test makes their sockets and pipes, and holds the other ends.
// Compiled with the address sanitizer and linked with --wrap for the calls
// that need the machine.
//
//	hosted agent    one conversation; fds 5 to 9 are the program's side
//	hosted nanos    the same by nanos_attach; the test says on fd 5 what the program does
//	hosted relay PORT…
//
// fd 3 is the agent's UDP socket, fd 4 its listener.
#define _GNU_SOURCE
#include "../agent/agent.h"
#include "../nanos/nanos.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { UDP_FD = 3, LISTEN_FD = 4, FIRST_FD = 5 };

int __real_socket(int, int, int);
int __wrap_socket(int domain, int type, int protocol)
{
	if (strcmp(getenv("HOSTED"), "relay") == 0)
		return __real_socket(domain, type, protocol);
	return dup((type & SOCK_DGRAM) && !(type & SOCK_STREAM) ? UDP_FD : LISTEN_FD);
}

int __real_bind(int, const struct sockaddr *, socklen_t);
int __wrap_bind(int fd, const struct sockaddr *at, socklen_t n)
{
	return strcmp(getenv("HOSTED"), "relay") == 0 ? __real_bind(fd, at, n) : 0;
}

int __real_listen(int, int);
int __wrap_listen(int fd, int backlog)
{
	return strcmp(getenv("HOSTED"), "relay") == 0 ? __real_listen(fd, backlog) : 0;
}

// The gateway is the test's socket.
ssize_t __real_sendto(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
ssize_t __wrap_sendto(int fd, const void *p, size_t n, int flags, const struct sockaddr *to, socklen_t len)
{
	struct sockaddr_in at;
	memcpy(&at, to, sizeof at);
	at.sin_addr.s_addr = inet_addr(getenv("GATEWAY"));
	at.sin_port = htons((uint16_t)atoi(getenv("HOST_PORT")));
	return __real_sendto(fd, p, n, flags, (struct sockaddr *)&at, len);
}

ssize_t __real_recvfrom(int, void *, size_t, int, struct sockaddr *, socklen_t *);
ssize_t __wrap_recvfrom(int fd, void *p, size_t n, int flags, struct sockaddr *from, socklen_t *len)
{
	ssize_t got = __real_recvfrom(fd, p, n, flags, from, len);
	struct sockaddr_in *at = (struct sockaddr_in *)from;
	if (at->sin_addr.s_addr == inet_addr(getenv("GATEWAY")) && at->sin_port == htons((uint16_t)atoi(getenv("HOST_PORT"))))
		at->sin_port = htons(AGENT_PORT);
	at->sin_addr.s_addr = inet_addr(GATEWAY_IP);
	return got;
}

static const char *moved(const char *path) { return strcmp(path, OUT_DIR) == 0 ? getenv("OUT") : path; }

int __real_accept4(int s, struct sockaddr *from, socklen_t *len, int flags);
int __wrap_accept4(int s, struct sockaddr *from, socklen_t *len, int flags)
{
	int c = __real_accept4(s, from, len, flags);
	struct sockaddr_in *at = (struct sockaddr_in *)from;
	if (c >= 0 && from && at->sin_addr.s_addr == inet_addr(getenv("GATEWAY")))
		at->sin_addr.s_addr = inet_addr(GATEWAY_IP);
	return c;
}

DIR *__real_opendir(const char *);
DIR *__wrap_opendir(const char *path) { return __real_opendir(moved(path)); }

int __real_open(const char *, int, ...);
int __wrap_open(const char *path, int flags, ...)
{
	va_list rest;
	va_start(rest, flags);
	mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
	va_end(rest);
	return __real_open(moved(path), flags, mode);
}

int __wrap_clock_settime(clockid_t clock, const struct timespec *at)
{
	(void)clock;
	(void)at;
	return 0;
}

static void seed(const uint8_t *entropy, size_t n, int64_t now_ns)
{
	(void)entropy;
	dprintf(STDOUT_FILENO, "seed %zu %d\n", n, now_ns > 0);
}

static void spawn(struct agent *a)
{
	(void)a;
	dprintf(STDOUT_FILENO, "spawn\n");
}

static int process(struct agent *a, const uint8_t *p, size_t n)
{
	(void)a;
	dprintf(STDOUT_FILENO, "process %zu ", n);
	if (write(STDOUT_FILENO, p, n) < 0)
		return -1;
	dprintf(STDOUT_FILENO, "\n");
	return 0;
}

static int terminal(struct agent *a, unsigned columns, unsigned rows)
{
	a->tty = 1;
	dprintf(STDOUT_FILENO, "terminal %u %u\n", columns, rows);
	return 0;
}

static int relay(struct agent *a, const uint16_t *ports, size_t n)
{
	(void)a;
	for (size_t i = 0; i < n; i++)
		dprintf(STDOUT_FILENO, "relay %d\n", ports[i]);
	return 0;
}

// Nanos's ftruncate keeps the data beyond the new end. Linux's does not, so the call is only reported.
static void set_length(int fd, uint64_t n) { dprintf(STDOUT_FILENO, "length %d %d\n", (int)n, fcntl(fd, F_GETFD) >= 0); }

static void commit(void) { dprintf(STDOUT_FILENO, "commit\n"); }

static void freeze(void) { dprintf(STDOUT_FILENO, "freeze\n"); }

static int ended(struct agent *a, struct agent_end *end)
{
	int32_t how[2];
	if (read(a->event, how, sizeof how) != sizeof how)
		return 0;
	end->code = how[0];
	end->signal = how[1];
	return 1;
}

static int run_agent(void)
{
	struct agent a = {
		.kernel = KERNEL_LINUX,
		.gateway = inet_addr(GATEWAY_IP),
		.in_w = FIRST_FD,
		.out_r = FIRST_FD + 1,
		.err_r = FIRST_FD + 2,
		.ctl = FIRST_FD + 3,
		.event = FIRST_FD + 4,
		.lazy = getenv("LAZY") != NULL,
		.log = STDOUT_FILENO,
		.owner = getuid(),
		.seed = seed,
		.spawn = spawn,
		.process = process,
		.terminal = terminal,
		.relay = relay,
		.freeze = freeze,
		.set_length = getenv("COMMITS") ? set_length : NULL,
		.commit = commit,
		.ended = ended,
	};
	struct agent_end end = {0};
	int result = agent_run(&a, &end);
	dprintf(STDOUT_FILENO, "over %d %d %d\n", result, end.code, end.signal);
	return 0;
}

// descriptors.c moves the agent's descriptors.
int out_of_the_way(int fd) { return fd; }

// streams.c handles the code's own connections; the code has none here.
void nanos_reset(void) {}

// The program: does one thing for each letter on the test's pipe.
static int run_nanos(void)
{
	char c, byte;
	int ctl = nanos_attach();
	if (ctl < 0)
		return 1;
	nanos_take_signals();
	while (read(FIRST_FD, &c, 1) == 1)
		switch (c) {
		case 'c':  // says a word to the agent
			if (read(FIRST_FD, &byte, 1) == 1 && write(ctl, &byte, 1) != 1)
				return 1;
			break;
		case 'r': {  // takes the start
			uint8_t b[HEADER_SIZE];
			if (recv(ctl, b, sizeof b, MSG_WAITALL) != sizeof b)
				return 1;
			for (uint32_t n = (uint32_t)b[2] << 8 | b[3]; n > 0; n--)
				if (recv(ctl, b, 1, 0) != 1)
					return 1;
			break;
		}
		case 'i':  // echoes a byte of its standard input
			if (read(STDIN_FILENO, &byte, 1) == 1)
				putchar(byte);
			break;
		case 'p':
			printf("printed\n");
			fprintf(stderr, "complained\n");
			break;
		case 'e':
			exit(7);
		case 'a':
			abort();
		case 's':
			nanos_signal(SIGKILL);
			break;
		case 't':
			raise(SIGTERM);
		}
	return 0;
}

int main(int argc, char **argv)
{
	uint16_t ports[MAX_RELAYS];
	size_t n = 0;
	if (argc < 2)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	setenv("HOSTED", argv[1], 1);
	if (strcmp(argv[1], "agent") == 0)
		return run_agent();
	if (strcmp(argv[1], "nanos") == 0)
		return run_nanos();
	for (int i = 2; i < argc && n < MAX_RELAYS; i++)
		ports[n++] = (uint16_t)atoi(argv[i]);
	if (relay_listen(ports, n) < 0)
		return 1;
	dprintf(STDOUT_FILENO, "listening\n");
	relay_run(inet_addr(getenv("GATEWAY")));
}
