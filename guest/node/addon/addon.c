// A Node addon that does in the guest what JavaScript can't do.
//
//   attach()      returns the descriptor of the control channel to the agent. On linux PID 1
//                 has created the channel as descriptor 3. On Nanos, which has one process,
//                 nanos_attach starts the agent in a thread.
//   nanos         is true on Nanos.
//   seed(buffer)  mixes the bytes into OpenSSL's generator, whose state is otherwise the same
//                 in all clones of a template. Node exports RAND_add (openssl/rand.h). seed
//                 also seeds V8's Math.random, which no context has used yet.
//   renew(buffer) is like seed, but for a session's driver: contexts have used Math.random.
//   protect(text) restricts the program's permissions on paths (Nanos, with unveil). text has
//                 pairs of permissions and a path, each with a NUL after it.
//   tidy(all)     empties V8's nursery, so that all of it is free for the user's code. all
//                 also collects the old garbage, so that no collection is under way.
//   workerLimits()
//                 resets V8's flag for the heap's size, once this thread's heap exists.
//   binding(name) returns Node's internal binding of that name.
//   timeOrigin(origin, node, v8)
//                 sets when the process, Node and V8 began, in nanoseconds of
//                 process.hrtime. It returns origin by the wall clock, in microseconds.
//   rehearsing(yes)
//                 keeps V8 from optimizing code early that it compiles from now on.
//   reallyExit(code)
//                 ends the program at once (quickExit in preload.js).
//   exitCode(code)
//                 stores the code that the program will end with by itself.
//   end(rehearsed)
//                 ends the program with 0 at once. rehearsed does all steps but the last.
//   threadless(yes)
//                 makes this thread's attempts to start threads fail from now on.
//   turn()        runs one turn of the event loop, in a rehearsal. It returns whether there
//                 was work.
//   rehearseEnd() calls the listeners for beforeExit and exit, as Node does at the end.
//   session, stepping, terminate: session.c.
//
// The addon is also the program's LD_PRELOAD. It replaces exit, to end the program at once, and
// pthread_create. ../../nanos/libc.c replaces other functions of libc.
#define _GNU_SOURCE
#define NAPI_VERSION 8
#include "addon.h"

#include "../../agent/agent.h"
#include "../../nanos/nanos.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <node_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern void RAND_add(const void *buf, int num, double entropy);
// v8::V8::SetFlagsFromString(char const *). node:v8 has a function of that name, but loading that
// module takes 40 ms under TCG.
extern void v8_set_flags(const char *flags) __asm__("_ZN2v82V818SetFlagsFromStringEPKc");

// v8::Isolate::RequestGarbageCollectionForTesting(type), which requires --expose-gc.
extern void v8_collect(void *isolate, int type) __asm__("_ZN2v87Isolate34RequestGarbageCollectionForTestingENS0_21GarbageCollectionTypeE");

// Functions that Node calls at a program's end, in SpinEventLoop.
extern void *v8_context(void *isolate) __asm__("_ZN2v87Isolate17GetCurrentContextEv");
extern void *node_environment(void *context) __asm__("_ZN4node21GetCurrentEnvironmentEN2v85LocalINS0_7ContextEEE");
extern void *node_platform(void *environment) __asm__("_ZN4node23GetMultiIsolatePlatformEPNS_11EnvironmentE");
extern void node_drain_tasks(void *platform, void *isolate) __asm__("_ZN4node12NodePlatform10DrainTasksEPN2v87IsolateE");
extern uint64_t node_before_exit(void *environment) __asm__("_ZN4node21EmitProcessBeforeExitEPNS_11EnvironmentE");
extern uint64_t node_exit(void *environment) __asm__("_ZN4node15EmitProcessExitEPNS_11EnvironmentE");

// v8::Function::New(context, callback, data, length, constructor behaviour, side effects), and the
// functions behind internalBinding.
extern napi_value v8_function(void *context, void (*call)(const void *), void *data, int length, int constructor, int effects) __asm__(
	"_ZN2v88Function3NewENS_5LocalINS_7ContextEEEPFvRKNS_20FunctionCallbackInfoINS_5ValueEEEENS1_IS5_EEiNS_19ConstructorBehaviorENS_14SideEffectTypeE");
extern void node_internal_binding(const void *info) __asm__("_ZN4node7binding18GetInternalBindingERKN2v820FunctionCallbackInfoINS1_5ValueEEE");
extern int uv_run(void *loop, int mode);
extern int uv_loop_alive(const void *loop);

enum { LINUX_CTL_FD = 3, FULL_COLLECTION = 0, MINOR_COLLECTION = 1, UV_RUN_ONCE = 1 };

// limit_heap sets V8's limit for old objects before Node's main, by the machine's memory, with the
// formula that ../node.go (HeapArg) uses for linux. The limit can't be in Nanos's image, which is for
// machines of every size.
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
	long mb = kb / 1024, heap = mb - HEAP_RESERVE_MB - mb / HEAP_RESERVE_SHARE;
	if (mb > 0) {
		snprintf(option, sizeof option, "--max-old-space-size=%ld", heap > HEAP_LEAST_MB ? heap : HEAP_LEAST_MB);
		setenv("NODE_OPTIONS", option, 1);
	}
}

// On linux Node sends its exit code to PID 1 on ctl_kept, and sleeps until the machine is gone. So
// PID 1 need not wait until the kernel has cleaned up the process.
static int ctl_kept = -1;
static pid_t armed;  // the one process that ends this way; forked processes end normally

// end_now ends the program at once. It returns if that is impossible, or in a rehearsal.
static void end_now(int code, bool rehearsed)
{
	uint8_t word[2] = {rehearsed ? CONTROL_WOULD_EXIT : CONTROL_EXIT, (uint8_t)code};
	if (armed != getpid())
		return;
	fflush(NULL);
	if (nanos_attached() && !rehearsed)
		nanos_end(code & 0xff, 0);
	else if (!nanos_attached() && write(ctl_kept, word, sizeof word) == sizeof word)
		while (!rehearsed)
			pause();
}

// exit ends the program at once. Node calls it after it has printed an uncaught exception.
__attribute__((noreturn)) void exit(int code)
{
	end_now(code, false);
	void (*real)(int) = (void (*)(int))dlsym(RTLD_NEXT, "exit");
	if (real)
		real(code);
	_exit(code);
}

// threadless makes pthread_create fail. node:tls starts a thread that reads the certificates as soon
// as it is loaded. In a rehearsal that is too early, because the run may bring certificates. Without
// the thread, node:tls reads them when it needs them.
static __thread bool threadless;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *arg)
{
	typedef int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	create real = (create)dlsym(RTLD_NEXT, "pthread_create");
	return threadless || !real ? EAGAIN : real(thread, attributes, main, arg);
}

// N-API ---------------------------------------------------------------------

static napi_value attach(napi_env env, napi_callback_info info)
{
	(void)info;
	napi_value fd;
	int ctl = is_nanos() ? nanos_attach() : LINUX_CTL_FD;
	if (ctl < 0)
		napi_throw_error(env, NULL, strerror(errno));
	if (is_nanos())
		nanos_take_signals();
	else // a high number, away from the descriptors that the code gets
		ctl_kept = fcntl(ctl, F_DUPFD_CLOEXEC, 512);
	napi_create_int32(env, ctl, &fd);
	return fd;
}

bool bool_argument(napi_env env, napi_callback_info info)
{
	size_t argc = 1;
	napi_value arg;
	bool value = false;
	if (napi_get_cb_info(env, info, &argc, &arg, NULL, NULL) == napi_ok && argc == 1)
		napi_get_value_bool(env, arg, &value);
	return value;
}

static napi_value renew(napi_env env, napi_callback_info info)
{
	size_t argc = 1, n = 0;
	napi_value arg;
	void *data = NULL;
	if (napi_get_cb_info(env, info, &argc, &arg, NULL, NULL) != napi_ok || argc != 1 ||
	    napi_get_buffer_info(env, arg, &data, &n) != napi_ok || n < 32) {
		napi_throw_type_error(env, NULL, "seed wants a buffer of 32 bytes or more");
		return NULL;
	}
	RAND_add(data, (int)n, (double)n);
	char flag[48];
	uint32_t random;
	memcpy(&random, data, sizeof random);
	snprintf(flag, sizeof flag, "--random-seed=%u", random & 0x7fffffff);
	v8_set_flags(flag);
	return NULL;
}

static napi_value seed(napi_env env, napi_callback_info info)
{
	armed = getpid();
	return renew(env, info);
}

static napi_value tidy(napi_env env, napi_callback_info info)
{
	bool all = bool_argument(env, info);
	v8_set_flags("--expose-gc");
	for (int i = 0; i < 2; i++)  // objects that survive two collections are old
		v8_collect(v8_isolate(), MINOR_COLLECTION);
	if (all)
		v8_collect(v8_isolate(), FULL_COLLECTION);
	v8_set_flags("--no-expose-gc");
	return NULL;
}

static napi_value worker_limits(napi_env env, napi_callback_info info)
{
	(void)env;
	(void)info;
	v8_set_flags("--max-old-space-size=0");
	return NULL;
}

// binding returns an internal binding, by which Node's own modules reach C++.
static napi_value binding(napi_env env, napi_callback_info info)
{
	size_t argc = 1;
	napi_value get = v8_function(v8_context(v8_isolate()), node_internal_binding, NULL, 0, 0, 0), self, name, result = NULL;
	if (get == NULL || napi_get_cb_info(env, info, &argc, &name, NULL, NULL) != napi_ok || argc != 1 || napi_get_undefined(env, &self) != napi_ok ||
	    napi_call_function(env, self, get, 1, &name, &result) != napi_ok)
		return NULL;
	return result;
}

static double microseconds(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

// time_origin sets Node's variables for its start times, in nanoseconds of the monotonic clock.
// performance.now() counts from the first variable, process.uptime() from the second. New
// Environments copy all of them, and the origin by the wall clock. dlsym finds the variables, because
// this library is also in processes that are not Node.
static napi_value time_origin(napi_env env, napi_callback_info info)
{
	static const char *const names[] = {"_ZN4node11performance25performance_process_startE", "_ZN4node11per_process15node_start_timeE", "_ZN4node11performance20performance_v8_startE"};
	enum { TIMES = sizeof names / sizeof *names };
	size_t argc = TIMES;
	napi_value args[TIMES], result;
	double times[TIMES], *timestamp = dlsym(RTLD_DEFAULT, "_ZN4node11performance35performance_process_start_timestampE");
	if (napi_get_cb_info(env, info, &argc, args, NULL, NULL) != napi_ok)
		return NULL;
	for (int i = 0; i < TIMES; i++) {
		uint64_t *start = dlsym(RTLD_DEFAULT, names[i]);
		if (start == NULL || timestamp == NULL || napi_get_value_double(env, args[i], &times[i]) != napi_ok) {
			napi_throw_error(env, NULL, "unitask: timeOrigin: three times, and a Node that has them");
			return NULL;
		}
		*start = (uint64_t)times[i];
	}
	*timestamp = (double)(int64_t)(microseconds(CLOCK_REALTIME) - (microseconds(CLOCK_MONOTONIC) - times[0] / 1e3) + 0.5);
	napi_create_double(env, *timestamp, &result);
	return result;
}

static napi_value rehearsing(napi_env env, napi_callback_info info)
{
	bool on = bool_argument(env, info);
	v8_set_flags(on ? "--invocation-count-for-maglev=8000" : "--invocation-count-for-maglev=400");  // 400 is V8's default
	return NULL;
}

static napi_value set_threadless(napi_env env, napi_callback_info info)
{
	threadless = bool_argument(env, info);
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

static int exit_code = -1;  // the code of the coming exit

// note_exit_code stores the exit code until Node's cleanup.
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

static napi_value turn(napi_env env, napi_callback_info info)
{
	(void)info;
	struct uv_loop_s *loop;
	void *isolate = v8_isolate();
	napi_value had;
	if (napi_get_uv_event_loop(env, &loop) != napi_ok)
		return NULL;
	bool alive = uv_loop_alive(loop);
	if (alive)
		uv_run(loop, UV_RUN_ONCE);
	node_drain_tasks(node_platform(node_environment(v8_context(isolate))), isolate);
	napi_get_boolean(env, alive, &had);
	return had;
}

static napi_value rehearse_end(napi_env env, napi_callback_info info)
{
	(void)env;
	(void)info;
	void *environment = node_environment(v8_context(v8_isolate()));
	node_before_exit(environment);
	node_exit(environment);
	exit_code = -1;
	return NULL;
}

// on_cleanup ends the program. Node calls it at the beginning of its cleanup, when the event loop is
// empty and every listener has run.
static void on_cleanup(void *arg)
{
	(void)arg;
	if (exit_code >= 0)
		end_now(exit_code, false);
}

static napi_value protect(napi_env env, napi_callback_info info)
{
	static char text[MAX_FRAME];
	size_t argc = 1, n = 0;
	napi_value arg;
	if (napi_get_cb_info(env, info, &argc, &arg, NULL, NULL) != napi_ok || argc != 1 ||
	    napi_get_value_string_utf8(env, arg, text, sizeof text, &n) != napi_ok || n == sizeof text - 1) {
		napi_throw_error(env, NULL, "unitask: protect: too many paths");
		return NULL;
	}
	for (const char *permissions = text; permissions < text + n;) {
		const char *path = permissions + strlen(permissions) + 1;
		nanos_unveil(path, permissions);
		permissions = path + strlen(path) + 1;
	}
	nanos_unveil(NULL, NULL);
	return NULL;
}

static napi_value set_up(napi_env env, napi_value exports)
{
	static const struct {
		const char *name;
		napi_callback call;
	} calls[] = {{"attach", attach}, {"seed", seed}, {"renew", renew}, {"protect", protect},
		{"tidy", tidy}, {"binding", binding}, {"timeOrigin", time_origin}, {"rehearsing", rehearsing}, {"workerLimits", worker_limits}, {"reallyExit", really_exit}, {"exitCode", note_exit_code},
		{"end", end}, {"threadless", set_threadless}, {"turn", turn}, {"rehearseEnd", rehearse_end},
		{"session", session_begin}, {"stepping", session_stepping}, {"terminate", session_terminate}};
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

// The library registers itself with Node before main, like a module that is linked into Node, and
// process._linkedBinding('unitask') returns it. A driver that loads it later uses process.dlopen.
// Node's macros for that (NODE_MODULE_INIT, NAPI_MODULE_INIT) would export functions whose names are
// the same in all modules. Because this library is preloaded, other modules would call ours instead
// of their own. napi_module_register is weak, because processes that are not Node lack it.
#pragma weak napi_module_register

__attribute__((constructor)) static void register_module(void)
{
	static napi_module module = {.nm_version = NAPI_MODULE_VERSION, .nm_filename = LIBRARY, .nm_register_func = set_up, .nm_modname = "unitask"};
	if (napi_module_register != NULL)
		napi_module_register(&module);
}
