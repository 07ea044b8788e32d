// A Node addon for what JavaScript cannot do in the guest.
//
//   seed(buffer)  mixes the bytes into OpenSSL's generator, which after a clone
//                 holds the same state as every other clone of its template.
//                 Node exports RAND_add (openssl/rand.h). It also seeds V8's
//                 Math.random, which no context has used yet.
#define NAPI_VERSION 8
#include <node_api.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern void RAND_add(const void *buf, int num, double entropy);
// v8::V8::SetFlagsFromString(char const *), which node:v8's function of that
// name calls; loading that module costs 40 ms under TCG.
extern void v8_set_flags(const char *flags) __asm__("_ZN2v82V818SetFlagsFromStringEPKc");

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
	RAND_add(data, (int)n, (double)n);
	char flag[48];
	uint32_t random;
	memcpy(&random, data, sizeof random);
	snprintf(flag, sizeof flag, "--random-seed=%u", random & 0x7fffffff);
	v8_set_flags(flag);
	return NULL;
}

NAPI_MODULE_INIT()
{
	napi_value fn;
	napi_create_function(env, "seed", NAPI_AUTO_LENGTH, seed, NULL, &fn);
	napi_set_named_property(env, exports, "seed", fn);
	return exports;
}
