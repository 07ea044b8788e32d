// A Node addon for what JavaScript cannot do in the guest.
//
//   attach()      returns the descriptor of the control channel to the agent. On
//                 linux PID 1 has made it, and it is 3. On Nanos, which has one
//                 process, attach makes the streams and starts the agent in a
//                 thread.
//   nanos         whether this is Nanos.
//   seed(buffer)  mixes the bytes into OpenSSL's generator, which after a clone
//                 holds the same state as every other clone of its template.
//                 Node exports RAND_add (openssl/rand.h). It also seeds V8's
//                 Math.random, which no context has used yet.
//   protect(text) holds the program to permissions on paths (Nanos, with unveil): text
//                 has them in turns, each with a NUL behind it.
//   tidy(all)     empties V8's nursery, so that the user's code starts with all of it;
//                 all collects the old garbage too, so that no collection is under way.
//   rehearsing(yes)
//                 keeps what is compiled from now on from being optimized early.
//   reallyExit(code)
//                 ends the program at once (quickExit in agent.js).
//   exitCode(code)
//                 is told the code that it will end with by itself.
//   end(rehearsed)
//                 ends the program with 0, at once; or does all but that.
//   rehearseEnd() does what Node does at the end of a program: the event loop, which
//                 has nothing to do, and the listeners for beforeExit and exit.
//
// It is also the program's LD_PRELOAD and stands before a few functions of libc: on
// Nanos those that it has no system call for, or gets wrong; on both mkdtemp.
#define _GNU_SOURCE
#define NAPI_VERSION 8
#include "../agent/agent.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <node_api.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

extern void RAND_add(const void *buf, int num, double entropy);
// v8::V8::SetFlagsFromString(char const *), which node:v8's function of that
// name calls; loading that module costs 40 ms under TCG.
extern void v8_set_flags(const char *flags) __asm__("_ZN2v82V818SetFlagsFromStringEPKc");

// v8::Isolate::GetCurrent() and RequestGarbageCollectionForTesting(type), which
// demands --expose-gc.
extern void *v8_isolate(void) __asm__("_ZN2v87Isolate10GetCurrentEv");
extern void v8_collect(void *isolate, int type) __asm__("_ZN2v87Isolate34RequestGarbageCollectionForTestingENS0_21GarbageCollectionTypeE");

// What Node does at a program's end, as its SpinEventLoop has it.
extern void *v8_context(void *isolate) __asm__("_ZN2v87Isolate17GetCurrentContextEv");
extern void *node_environment(void *context) __asm__("_ZN4node21GetCurrentEnvironmentEN2v85LocalINS0_7ContextEEE");
extern void *node_platform(void *environment) __asm__("_ZN4node23GetMultiIsolatePlatformEPNS_11EnvironmentE");
extern void node_drain_tasks(void *platform, void *isolate) __asm__("_ZN4node12NodePlatform10DrainTasksEPN2v87IsolateE");
extern uint64_t node_before_exit(void *environment) __asm__("_ZN4node21EmitProcessBeforeExitEPNS_11EnvironmentE");
extern uint64_t node_exit(void *environment) __asm__("_ZN4node15EmitProcessExitEPNS_11EnvironmentE");
extern int uv_run(void *loop, int mode);

enum { LINUX_CTL_FD = 3, FULL_COLLECTION = 0, MINOR_COLLECTION = 1, UV_RUN_NOWAIT = 2 };

static const char *gateway_ip = "10.0.2.2";

static int is_nanos(void)
{
	struct utsname u;
	return uname(&u) == 0 && strcmp(u.sysname, "Linux") != 0;
}

// Nanos: the agent in a thread of this process ------------------------------

static pthread_t agent_thread;
static int event_w = -1;      // the agent's event: how the program ends
static atomic_int ending;     // somebody is ending the program already
static int console = -1;

// end_with tells the agent how the program ends and waits until the host has
// seen everything; the host then kills the machine. Safe in a signal handler.
static void end_with(int code, int sig)
{
	int32_t how[2] = {code, sig};
	if (event_w < 0 || pthread_equal(pthread_self(), agent_thread))
		return;
	if (atomic_exchange(&ending, 1) == 0 && write(event_w, how, sizeof how) < 0)
		return;
	struct timespec long_time = {.tv_sec = 10};
	while (nanosleep(&long_time, &long_time) < 0)
		;
}

// Linux: Node tells PID 1 its exit code, rather than that PID 1 waits until the kernel
// has taken the process apart, and sleeps until the machine is gone.
static int ctl_kept = -1;
static pid_t armed;  // the process to end so; not one that it has forked

// end_now ends the program at once, or returns if it can't, or if that is rehearsed.
static void end_now(int code, bool rehearsed)
{
	uint8_t word[2] = {rehearsed ? 'N' : 'E', (uint8_t)code};
	if (armed != getpid())
		return;
	fflush(NULL);
	if (event_w >= 0 && !rehearsed)
		end_with(code & 0xff, 0);
	else if (event_w < 0 && write(ctl_kept, word, sizeof word) == sizeof word)
		while (!rehearsed)
			pause();
}

// exit: Node calls it when an exception was not caught, and has printed it.
__attribute__((noreturn)) void exit(int code)
{
	end_now(code, false);
	void (*real)(int) = (void (*)(int))dlsym(RTLD_NEXT, "exit");
	if (real)
		real(code);
	_exit(code);
}

static void on_program_exit(int code, void *arg)
{
	(void)arg;
	fflush(NULL);
	end_with(code & 0xff, 0);
}

static void on_fatal_signal(int sig)
{
	end_with(0, sig);
	_exit(128 + sig);
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

// nanos_seed sets the clock, and makes the kernel's generator take fresh seeds of
// its own: it does after 64 KiB. Writing to /dev/urandom does nothing there.
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

// nanos_relay needs no relay: connect, below, sends such connections to the gateway
// itself. Nanos's loopback now and then stops for good when more than a window is
// written at once, so the less goes over it the better.
static uint16_t relayed[AGENT_MAX_RELAYS];
static atomic_size_t relayed_count;

static int nanos_relay(struct agent *a, const uint16_t *ports, size_t n)
{
	(void)a;
	memcpy(relayed, ports, n * sizeof *ports);
	relayed_count = n;
	return 0;
}

static void *run_agent(void *arg)
{
	struct agent_end end = {0};
	agent_run(arg, &end);
	_exit(125);
	return NULL;
}

static int nanos_attach(void)
{
	static struct agent a;
	int in[2], out[2], err[2], ctl[2], event[2];
	if (pipe(in) < 0 || pipe(out) < 0 || pipe(err) < 0 || pipe(event) < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ctl) < 0)
		return -1;
	console = dup(STDERR_FILENO);
	fflush(NULL);
	if (console < 0 || dup2(in[0], 0) < 0 || dup2(out[1], 1) < 0 || dup2(err[1], 2) < 0)
		return -1;
	close(in[0]);
	close(out[1]);
	close(err[1]);
	event_w = event[1];
	a = (struct agent){
		.kernel = "nanos",
		.again_ms = 50,
		.gateway = inet_addr(gateway_ip),
		.in_w = in[1],
		.out_r = out[0],
		.err_r = err[0],
		.ctl = ctl[0],
		.event = event[0],
		.log = console,
		.seed = nanos_seed,
		.relay = nanos_relay,
		.ended = nanos_ended,
	};
	// The agent's thread takes no signals: they belong to the program.
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = pthread_create(&agent_thread, NULL, run_agent, &a);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed || on_exit(on_program_exit, NULL) != 0)
		return -1;
	// Signals that end a process by default would end the machine without a
	// word. SIGSEGV and SIGBUS stay: V8 has uses for them.
	// Node's own handlers for SIGTERM and SIGINT do no more than that.
	static const int fatal[] = {SIGABRT, SIGILL, SIGFPE, SIGTRAP, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR2, SIGALRM, SIGSYS};
	struct sigaction act = {.sa_handler = on_fatal_signal};
	for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
		sigaction(fatal[i], &act, NULL);
	return ctl[1];
}

// Nanos: in the place of libc ------------------------------------------------

// Before Node's main: V8's limit for old objects, from the machine's memory, as
// init and unitask (heapMB) reckon it on linux. The root tuple can't hold it: the
// image serves machines of every size.
__attribute__((constructor)) static void limit_heap(void)
{
	char line[128], option[64];
	long kb = 0;
	FILE *f = is_nanos() ? fopen("/proc/meminfo", "r") : NULL;
	if (f == NULL)
		return;
	while (fgets(line, sizeof line, f) && sscanf(line, "MemTotal: %ld", &kb) != 1)
		;
	fclose(f);
	long mb = kb / 1024, heap = mb - 136 - mb / 16;
	if (mb > 0) {
		snprintf(option, sizeof option, "--max-old-space-size=%ld", heap > 40 ? heap : 40);
		setenv("NODE_OPTIONS", option, 1);
	}
}

// kill: a fatal signal to ourselves that nobody handles, SIGKILL above all, would
// end the machine before what was printed is out.
int kill(pid_t pid, int sig)
{
	static const int harmless[] = {SIGCHLD, SIGCONT, SIGURG, SIGWINCH};
	struct sigaction now;
	int ours = pid == getpid() || pid == 0, fatal = sig > 0;
	for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
		fatal = fatal && sig != harmless[i];
	if (ours && fatal && event_w >= 0 &&
	    (sig == SIGKILL || (sigaction(sig, NULL, &now) == 0 && now.sa_handler == SIG_DFL)))
		on_fatal_signal(sig);
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
		for (size_t i = 0; i < relayed_count; i++)
			if (ntohl(in.sin_addr.s_addr) >> 24 == 127 && ntohs(in.sin_port) == relayed[i]) {
				in.sin_addr.s_addr = inet_addr(gateway_ip);
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

// N-API ---------------------------------------------------------------------

static napi_value attach(napi_env env, napi_callback_info info)
{
	(void)info;
	napi_value fd;
	int ctl = is_nanos() ? nanos_attach() : LINUX_CTL_FD;
	if (ctl < 0)
		napi_throw_error(env, NULL, strerror(errno));
	if (!is_nanos()) // high, out of the way of the descriptors that the code gets
		ctl_kept = fcntl(ctl, F_DUPFD_CLOEXEC, 512);
	napi_create_int32(env, ctl, &fd);
	return fd;
}

// bool_argument is a function's only argument; false where it is missing.
static bool bool_argument(napi_env env, napi_callback_info info)
{
	size_t argc = 1;
	napi_value arg;
	bool value = false;
	if (napi_get_cb_info(env, info, &argc, &arg, NULL, NULL) == napi_ok && argc == 1)
		napi_get_value_bool(env, arg, &value);
	return value;
}

static napi_value seed(napi_env env, napi_callback_info info)
{
	size_t argc = 1, n = 0;
	napi_value arg;
	void *data = NULL;
	if (napi_get_cb_info(env, info, &argc, &arg, NULL, NULL) != napi_ok || argc != 1 ||
	    napi_get_buffer_info(env, arg, &data, &n) != napi_ok || n < 32) {
		napi_throw_type_error(env, NULL, "seed wants a buffer of 32 bytes or more");
		return NULL;
	}
	armed = getpid();
	RAND_add(data, (int)n, (double)n);
	char flag[48];
	uint32_t random;
	memcpy(&random, data, sizeof random);
	snprintf(flag, sizeof flag, "--random-seed=%u", random & 0x7fffffff);
	v8_set_flags(flag);
	return NULL;
}

static napi_value tidy(napi_env env, napi_callback_info info)
{
	bool all = bool_argument(env, info);
	v8_set_flags("--expose-gc");
	for (int i = 0; i < 2; i++)  // what survives two is old
		v8_collect(v8_isolate(), MINOR_COLLECTION);
	if (all)
		v8_collect(v8_isolate(), FULL_COLLECTION);
	v8_set_flags("--no-expose-gc");
	return NULL;
}

static napi_value rehearsing(napi_env env, napi_callback_info info)
{
	bool on = bool_argument(env, info);
	v8_set_flags(on ? "--invocation-count-for-maglev=8000" : "--invocation-count-for-maglev=400");  // 400 is V8's own
	return NULL;
}

static napi_value really_exit(napi_env env, napi_callback_info info)
{
	size_t argc = 1;
	napi_value arg;
	int32_t code = 0;
	if (napi_get_cb_info(env, info, &argc, &arg, NULL, NULL) == napi_ok && argc == 1)
		napi_get_value_int32(env, arg, &code);
	exit(code);
}

static int exit_code = -1;  // of the end that is coming

// exitCode(code) notes what the program will end with when Node takes itself apart.
static napi_value note_exit_code(napi_env env, napi_callback_info info)
{
	size_t argc = 1;
	napi_value arg;
	int32_t code;
	if (napi_get_cb_info(env, info, &argc, &arg, NULL, NULL) == napi_ok && argc == 1 &&
	    napi_coerce_to_number(env, arg, &arg) == napi_ok && napi_get_value_int32(env, arg, &code) == napi_ok)
		exit_code = code & 0xff;
	return NULL;
}

static napi_value end(napi_env env, napi_callback_info info)
{
	end_now(0, bool_argument(env, info));
	return NULL;
}

static napi_value rehearse_end(napi_env env, napi_callback_info info)
{
	(void)info;
	struct uv_loop_s *loop;
	void *isolate = v8_isolate(), *environment = node_environment(v8_context(isolate));
	if (napi_get_uv_event_loop(env, &loop) != napi_ok)
		return NULL;
	uv_run(loop, UV_RUN_NOWAIT);
	node_drain_tasks(node_platform(environment), isolate);
	node_before_exit(environment);
	node_exit(environment);
	exit_code = -1;
	return NULL;
}

// on_cleanup: the loop has run dry, every listener has run, and Node begins to take
// itself apart.
static void on_cleanup(void *arg)
{
	(void)arg;
	if (exit_code >= 0)
		end_now(exit_code, false);
}

enum { SYS_UNVEIL = 336 };  // of Nanos's sandbox klib (klib/sandbox.h)

static napi_value protect(napi_env env, napi_callback_info info)
{
	static char text[AGENT_MAX_FRAME];
	size_t argc = 1, n = 0;
	napi_value arg;
	if (napi_get_cb_info(env, info, &argc, &arg, NULL, NULL) != napi_ok || argc != 1 ||
	    napi_get_value_string_utf8(env, arg, text, sizeof text, &n) != napi_ok || n == sizeof text - 1) {
		napi_throw_error(env, NULL, "unitask: protect: too many paths");
		return NULL;
	}
	for (const char *permissions = text; permissions < text + n;) {
		const char *path = permissions + strlen(permissions) + 1;
		syscall(SYS_UNVEIL, path, permissions);
		permissions = path + strlen(path) + 1;
	}
	syscall(SYS_UNVEIL, NULL, NULL);  // for good
	return NULL;
}

NAPI_MODULE_INIT()
{
	static const struct {
		const char *name;
		napi_callback call;
	} calls[] = {{"attach", attach}, {"seed", seed}, {"protect", protect},
		{"tidy", tidy}, {"rehearsing", rehearsing}, {"reallyExit", really_exit}, {"exitCode", note_exit_code},
		{"end", end}, {"rehearseEnd", rehearse_end}};
	napi_value v;
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		napi_create_function(env, calls[i].name, NAPI_AUTO_LENGTH, calls[i].call, NULL, &v);
		napi_set_named_property(env, exports, calls[i].name, v);
	}
	napi_add_env_cleanup_hook(env, on_cleanup, NULL);
	napi_get_boolean(env, is_nanos(), &v);
	napi_set_named_property(env, exports, "nanos", v);
	return exports;
}
