// Declarations that the addon's files share.
#ifndef UNITASK_ADDON_H
#define UNITASK_ADDON_H

#include <node_api.h>
#include <stdbool.h>

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

// v8::Isolate::GetCurrent().
extern void *v8_isolate(void) __asm__("_ZN2v87Isolate10GetCurrentEv");

// bool_argument returns a function's only argument; false if it is missing.
bool bool_argument(napi_env env, napi_callback_info info);

// session.c
napi_value session_begin(napi_env env, napi_callback_info info);
napi_value session_stepping(napi_env env, napi_callback_info info);
napi_value session_terminate(napi_env env, napi_callback_info info);

#pragma GCC visibility pop

#endif
