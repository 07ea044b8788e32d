// The part of the addon for a session's driver (../../supervisor/driver.js), which on Nanos runs in
// the machine's one process.
//
//   session(stop)   reports that the driver is up. It returns the descriptors for code and for
//                   answers. The addon calls stop, between other events, to end a step.
//   stepping(yes)   tells the addon whether a step is running.
//   terminate()     ends all running JavaScript up to its caller outside JavaScript. No catch or
//                   finally runs.
#define NAPI_VERSION 8
#include "addon.h"

#include "../../nanos/nanos.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

// v8::Isolate::TerminateExecution() and RequestInterrupt(callback, data).
extern void v8_terminate(void *isolate) __asm__("_ZN2v87Isolate18TerminateExecutionEv");
extern void v8_interrupt(void *isolate, void (*call)(void *isolate, void *data), void *data) __asm__("_ZN2v87Isolate16RequestInterruptEPFvPS0_PvES2_");

enum { FORCE_MS = 1500 };  // ms that a forced end of a step may take; ../../supervisor waits slightly longer

static void *isolate;
static napi_threadsafe_function stop;
static atomic_bool stepping;
static atomic_uint answered;  // number of steps that were answered

// on_stop runs in the main thread, and calls the driver's stop function. It marks the step as over, so
// that a later end_step does not end that function.
static void on_stop(napi_env env, napi_value call, void *context, void *data)
{
	(void)context;
	(void)data;
	napi_value self;
	atomic_store(&stepping, false);
	if (env && napi_get_undefined(env, &self) == napi_ok)
		napi_call_function(env, self, call, 0, NULL, NULL);
}

// end_step runs in the main thread, in the middle of JavaScript, and ends it if a step is running.
static void end_step(void *in, void *data)
{
	(void)data;
	if (atomic_exchange(&stepping, false))
		v8_terminate(in);
}

// insist ends the machine if a forced end of a step takes too long.
static void *insist(void *arg)
{
	unsigned before = (unsigned)(uintptr_t)arg;
	struct timespec left = {.tv_sec = FORCE_MS / 1000, .tv_nsec = FORCE_MS % 1000 * 1000000L};
	while (nanosleep(&left, &left) < 0)
		;
	if (atomic_load(&answered) == before)
		nanos_end(0, SIGKILL);
	return NULL;
}

// interrupt ends the running step. The session's thread calls it.
static void interrupt(bool force)
{
	pthread_t thread;
	if (!force) {
		napi_call_threadsafe_function(stop, NULL, napi_tsfn_nonblocking);
		return;
	}
	uintptr_t before = atomic_load(&answered);
	v8_interrupt(isolate, end_step, NULL);
	if (pthread_create(&thread, NULL, insist, (void *)before) == 0)
		pthread_detach(thread);
	else
		nanos_end(0, SIGKILL);
}

napi_value session_begin(napi_env env, napi_callback_info info)
{
	size_t argc = 1;
	napi_value call, name, list, fd;
	int fds[2];
	isolate = v8_isolate();
	if (napi_get_cb_info(env, info, &argc, &call, NULL, NULL) != napi_ok || argc != 1 ||
	    napi_create_string_utf8(env, "unitask", NAPI_AUTO_LENGTH, &name) != napi_ok ||
	    napi_create_threadsafe_function(env, call, NULL, name, 0, 1, NULL, NULL, NULL, on_stop, &stop) != napi_ok ||
	    napi_unref_threadsafe_function(env, stop) != napi_ok || nanos_interprets(fds, interrupt) < 0) {
		napi_throw_error(env, NULL, "unitask: there is no session");
		return NULL;
	}
	napi_create_array_with_length(env, 2, &list);
	for (uint32_t i = 0; i < 2; i++) {
		napi_create_int32(env, fds[i], &fd);
		napi_set_element(env, list, i, fd);
	}
	return list;
}

napi_value session_stepping(napi_env env, napi_callback_info info)
{
	bool on = bool_argument(env, info);
	atomic_store(&stepping, on);
	if (!on)
		atomic_fetch_add(&answered, 1);
	return NULL;
}

napi_value session_terminate(napi_env env, napi_callback_info info)
{
	(void)env;
	(void)info;
	v8_terminate(isolate);
	return NULL;
}
