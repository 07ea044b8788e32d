// A Node addon for what JavaScript cannot do in the guest.
//
//   seed(buffer)  mixes the bytes into OpenSSL's generator, which after a clone
//                 holds the same state as every other clone of its template.
//                 Node exports RAND_add (openssl/rand.h).
#define NAPI_VERSION 8
#include <node_api.h>

extern void RAND_add(const void *buf, int num, double entropy);

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
	return NULL;
}

NAPI_MODULE_INIT()
{
	napi_value fn;
	napi_create_function(env, "seed", NAPI_AUTO_LENGTH, seed, NULL, &fn);
	napi_set_named_property(env, exports, "seed", fn);
	return exports;
}
