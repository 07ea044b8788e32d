// Runs the agent in a thread of the program, because Nanos has only one process.
#define _GNU_SOURCE
#include "calls.h"
#include "nanos.h"

#include "../agent/agent.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

__thread bool own_thread;

int is_nanos(void)
{
	struct utsname u;
	return uname(&u) == 0 && strcmp(u.sysname, "Linux") != 0;
}

static pthread_t agent_thread;
static int event_w = -1;  // tells the agent how the program ends
static atomic_int ending;  // a thread already ends the program
static int console = -1;

int nanos_attached(void) { return event_w >= 0; }

void nanos_end(int code, int sig)
{
	int32_t how[2] = {code, sig};
	if (event_w < 0 || pthread_equal(pthread_self(), agent_thread))
		return;
	if (atomic_exchange(&ending, 1) == 0 && call(SYS_write, event_w, how, sizeof how) < 0)
		return;
	struct timespec long_time = {.tv_sec = 10};
	while (nanosleep(&long_time, &long_time) < 0)
		;
}

static void on_program_exit(int code, void *arg)
{
	(void)arg;
	fflush(NULL);
	nanos_end(code & 0xff, 0);
}

void nanos_lacks(const char *what)
{
	static atomic_uint said;
	if (atomic_fetch_add(&said, 1) < 16)  // each message adds a line to the run's record
		dprintf(console, "unitask lacks: %s\n", what);
}

void nanos_signal(int sig)
{
	nanos_end(0, sig);
	_exit(EXIT_SIGNAL + sig);
}

static int nanos_ended(struct agent *a, struct agent_end *end)
{
	int32_t how[2];
	if (read(a->event, how, sizeof how) != sizeof how)
		return 0;
	end->code = how[0];
	end->signal = how[1];
	return 1;
}

// nanos_seed sets the clock, and makes the kernel's generator reseed itself by reading 64 KiB from it.
// Writing to /dev/urandom does nothing in Nanos.
static void nanos_seed(const uint8_t *entropy, size_t n, int64_t now_ns)
{
	static uint8_t junk[4096];
	struct timespec ts = {.tv_sec = now_ns / 1000000000, .tv_nsec = now_ns % 1000000000};
	clock_settime(CLOCK_REALTIME, &ts);
	for (int i = 0; i < 17; i++)
		if (getrandom(junk, sizeof junk, 0) < 0)
			break;
	(void)entropy;
	(void)n;
}

// nanos_relay only stores the ports: connect (sockets.c) sends connections to them to the gateway.
static uint16_t relayed[MAX_RELAYS];
static atomic_size_t relayed_count;

int nanos_relayed(uint16_t port)
{
	for (size_t i = 0; i < relayed_count; i++)
		if (relayed[i] == port)
			return 1;
	return 0;
}

static int nanos_relay(struct agent *a, const uint16_t *ports, size_t n)
{
	(void)a;
	memcpy(relayed, ports, n * sizeof *ports);
	relayed_count = n;
	return 0;
}

// nanos_set_length calls Nanos's ftruncate, which changes the length and keeps the data beyond it.
// For the program, cut in files.c wipes that data.
static void nanos_set_length(int fd, uint64_t n) { call(SYS_ftruncate, fd, n); }

// nanos_commit makes Nanos write its dirty pages. Nanos tries that every five seconds, and fails,
// because the disk is read-only. After a failure Nanos would try again forever, with all files. Nanos
// does not write pages beyond a file's current end, which stay in memory.
static void nanos_commit(void) { call(SYS_sync); }

static void *run_agent(void *arg)
{
	struct agent_end end = {0};
	own_thread = true;
	agent_run(arg, &end);
	_exit(EXIT_UNKNOWN);
	return NULL;
}

int nanos_attach(void)
{
	static struct agent a;
	int in[2], out[2], err[2], ctl[2], event[2];
	if (pipe(in) < 0 || pipe(out) < 0 || pipe(err) < 0 || pipe(event) < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ctl) < 0)
		return -1;
	console = out_of_the_way(dup(STDERR_FILENO));
	fflush(NULL);
	if (console < 0 || dup2(in[0], 0) < 0 || dup2(out[1], 1) < 0 || dup2(err[1], 2) < 0)
		return -1;
	close(in[0]);
	close(out[1]);
	close(err[1]);
	event_w = out_of_the_way(event[1]);
	a = (struct agent){
		.kernel = KERNEL_NANOS,
		.again_ms = 50,
		.gateway = inet_addr(GATEWAY_IP),
		.in_w = out_of_the_way(in[1]),
		.out_r = out_of_the_way(out[0]),
		.err_r = out_of_the_way(err[0]),
		.ctl = out_of_the_way(ctl[0]),
		.event = out_of_the_way(event[0]),
		.log = console,
		.seed = nanos_seed,
		.relay = nanos_relay,
		.session = nanos_session,
		.reset = nanos_reset,
		.set_length = nanos_set_length,
		.commit = nanos_commit,
		.ended = nanos_ended,
	};
	// The agent's thread takes no signals, because they are for the program.
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = pthread_create(&agent_thread, NULL, run_agent, &a);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return failed || on_exit(on_program_exit, NULL) != 0 ? -1 : ctl[1];
}

void nanos_take_signals(void)
{
	// Signals that end a process by default would end the machine without a message. SIGSEGV and
	// SIGBUS are not here, because V8 uses them. Node's own handlers for SIGTERM and SIGINT only end
	// the process.
	static const int fatal[] = {SIGABRT, SIGILL, SIGFPE, SIGTRAP, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR2, SIGALRM, SIGSYS};
	struct sigaction act = {.sa_handler = nanos_signal};
	for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
		sigaction(fatal[i], &act, NULL);
}

enum { SYS_UNVEIL = 336 };  // from Nanos's sandbox klib (klib/sandbox.h)

void nanos_unveil(const char *path, const char *permissions) { call(SYS_UNVEIL, path, permissions); }
