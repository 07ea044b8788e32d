// What runs in Python before the user's code. It is Debian's own /usr/bin/python3, with
// this library preloaded: it stands before __libc_start_main, so that main is here. That
// initializes the interpreter, as Python's own main does for `python3 FILE`, tells the
// agent (agent.c) that it is up, waits for the start, puts the user's file, arguments,
// environment and directory into the configuration that Python has read already, and has
// Python go on (Py_RunMain). From there all is Python's own.
//
// A process that is started for one run (ENV_FRESH) needs none of that: it takes its
// start and becomes a plain `python3 FILE`.
#define _GNU_SOURCE
#include "../../start/start.h"

#include <Python.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/prctl.h>

#define PROGRAM "/usr/bin/python3"

// check ends the process when something went wrong: nobody waits for it then.
static void check(bool ok, const char *what)
{
	if (ok)
		return;
	dprintf(STDERR_FILENO, "unitask: python: %s\n", what);
	if (PyErr_Occurred())
		PyErr_Print();
	_exit(EXIT_UNKNOWN);
}

// The interpreter's own generators are seeded by the kernel when they are first used, and
// that is after the start. OpenSSL's may have been used: a clone holds its template's state.
static void seed(const uint8_t *entropy)
{
	void *crypto = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_NOLOAD);
	void (*add)(const void *, int, double) = crypto ? (void (*)(const void *, int, double))dlsym(crypto, "RAND_add") : NULL;
	if (add)
		add(entropy, ENTROPY_SIZE, ENTROPY_SIZE);
	if (crypto)
		dlclose(crypto);
}

static PyObject *text(const char *s)
{
	PyObject *o = PyUnicode_DecodeFSDefault(s);
	check(o != NULL, "a string");
	return o;
}

static void set_environment(char **env)
{
	bool locale = false;
	PyObject *os = PyImport_ImportModule("os");
	PyObject *environ_ = os ? PyObject_GetAttrString(os, "environ") : NULL;
	PyObject *none = environ_ ? PyObject_CallMethod(environ_, "clear", NULL) : NULL;
	check(none != NULL, "os.environ");
	for (char **variable = env; *variable; variable++) {
		char *value = strchr(*variable, '=') + 1;
		locale |= strncmp(*variable, "LC_ALL=", 7) == 0 || strncmp(*variable, "LC_CTYPE=", 9) == 0 || strncmp(*variable, "LANG=", 5) == 0;
		value[-1] = 0;
		PyObject *k = text(*variable), *v = text(value);
		value[-1] = '=';
		check(PyObject_SetItem(environ_, k, v) == 0, *variable);
		Py_DECREF(k);
		Py_DECREF(v);
	}
	if (!locale) {  // Python has done so at its start (PEP 538), where the environment says nothing else
		PyObject *v = text("C.UTF-8");
		check(PyMapping_SetItemString(environ_, "LC_CTYPE", v) == 0, "LC_CTYPE");
		Py_DECREF(v);
	}
	Py_DECREF(none);
	Py_DECREF(environ_);
	Py_DECREF(os);
	PyObject *time = PyImport_ImportModule("time");
	none = time ? PyObject_CallMethod(time, "tzset", NULL) : NULL;
	check(none != NULL, "time.tzset");
	Py_DECREF(none);
	Py_DECREF(time);
}

// set_list sets a list of the configuration, and the one of sys that was made of it.
static void set_list(PyConfig *config, PyWideStringList *list, const char *name, char **strings)
{
	size_t n = 0;
	while (strings[n])
		n++;
	wchar_t **wide = calloc(n + 1, sizeof *wide);
	PyObject *o = PyList_New((Py_ssize_t)n);
	check(wide != NULL && o != NULL, name);
	for (size_t i = 0; i < n; i++) {
		wide[i] = Py_DecodeLocale(strings[i], NULL);
		PyObject *s = wide[i] ? PyUnicode_FromWideChar(wide[i], -1) : NULL;
		check(s != NULL, name);
		PyList_SET_ITEM(o, (Py_ssize_t)i, s);
	}
	check(!PyStatus_Exception(PyConfig_SetWideStringList(config, list, (Py_ssize_t)n, wide)), name);
	check(PySys_SetObject(name, o) == 0, name);
	Py_DECREF(o);
	for (size_t i = 0; i < n; i++)
		PyMem_RawFree(wide[i]);
	free(wide);
}

// begin gives the interpreter what it was started with.
static void begin(struct start *s)
{
	seed(s->entropy);
	start_trust(s);
	check(chdir(s->cwd) == 0, s->cwd);
	set_environment(s->env);
	PyConfig *config = (PyConfig *)_Py_GetConfig();
	check(!PyStatus_Exception(PyConfig_SetBytesString(config, &config->run_filename, s->argv[0])), s->argv[0]);
	set_list(config, &config->argv, "argv", s->argv);
	char **all = start_join("python3", s->flags, s->argv);
	set_list(config, &config->orig_argv, "orig_argv", all);
	free(all);
}

// Rehearsals ----------------------------------------------------------------

// names is the names in a dictionary.
static PyObject *names(PyObject *dict)
{
	PyObject *keys = PyFrozenSet_New(dict);
	check(keys != NULL, "names");
	return keys;
}

// forget_but removes what has come to a dictionary since, and drops the names.
static void forget_but(PyObject *dict, PyObject *was)
{
	PyObject *keys = PyDict_Keys(dict);
	check(keys != NULL, "keys");
	for (Py_ssize_t i = PyList_GET_SIZE(keys) - 1; i >= 0; i--) {
		PyObject *key = PyList_GET_ITEM(keys, i);
		if (PySet_Contains(was, key) == 0)
			check(PyDict_DelItem(dict, key) == 0, "forget");
	}
	Py_DECREF(keys);
	Py_DECREF(was);
}

static void flush(const char *name)
{
	PyObject *none = PyObject_CallMethod(PySys_GetObject(name), "flush", NULL);
	check(none != NULL, name);
	Py_DECREF(none);
}

// rehearse goes the whole way of a run with a throw-away program, so that what a run takes
// is in memory, and translated by the emulator, when the user's comes. It leaves nothing
// behind that the user's could see.
static void rehearse(struct start *s)
{
	char was_in[MAX_PATH];
	check(getcwd(was_in, sizeof was_in) != NULL, "getcwd");
	begin(s);
	PyObject *module = PyImport_AddModule("__main__"), *globals = PyModule_GetDict(module);  // borrowed
	PyObject *loader = PyDict_GetItemString(globals, "__loader__");
	PyObject *modules = PyImport_GetModuleDict(), *cache = PySys_GetObject("path_importer_cache"), *path = PySys_GetObject("path");
	PyObject *had_globals = names(globals), *had_modules = names(modules), *had_cache = names(cache);
	Py_XINCREF(loader);
	PyObject *dir = text(s->cwd);
	check(PyList_Insert(path, 0, dir) == 0, "sys.path");
	Py_DECREF(dir);
	FILE *f = fopen(s->argv[0], "rb");
	check(f != NULL && PyRun_AnyFileExFlags(f, s->argv[0], 1, NULL) == 0, s->argv[0]);
	flush("stdout");
	flush("stderr");
	check(PyList_SetSlice(path, 0, 1, NULL) == 0, "sys.path");
	forget_but(globals, had_globals);
	if (loader)
		check(PyDict_SetItemString(globals, "__loader__", loader) == 0, "__loader__");
	Py_XDECREF(loader);
	forget_but(modules, had_modules);
	forget_but(cache, had_cache);
	check(chdir(was_in) == 0, was_in);
	start_remove(s->cwd);
	PyGC_Collect();
	start_word(CONTROL_REHEARSED);
}

// Main ----------------------------------------------------------------------

static int run(int argc, char **argv)
{
	struct start s;
	PyConfig config;
	unsetenv("LD_PRELOAD");
	prctl(PR_SET_NAME, "python3");  // as whoever types that has it
	PyConfig_InitPythonConfig(&config);
	PyStatus status = PyConfig_SetBytesArgv(&config, argc, argv);
	if (!PyStatus_Exception(status))
		status = Py_InitializeFromConfig(&config);
	PyConfig_Clear(&config);
	if (PyStatus_Exception(status))
		Py_ExitStatusException(status);
	start_word(CONTROL_READY);
	for (;;) {
		start_wait(&s);
		if (!s.rehearsal)
			break;
		rehearse(&s);
		start_free(&s);
	}
	begin(&s);
	start_free(&s);
	start_word(CONTROL_STARTED);
	close(START_CTL);
	return Py_RunMain();
}

static int fresh(void)
{
	struct start s;
	start_word(CONTROL_READY);
	start_wait(&s);
	start_trust(&s);
	check(chdir(s.cwd) == 0, s.cwd);
	start_word(CONTROL_STARTED);
	close(START_CTL);
	start_exec(PROGRAM, start_join("python3", s.flags, s.argv), s.env);
	return EXIT_UNKNOWN;
}

static int (*own_main)(int, char **, char **);

static int start_main(int argc, char **argv, char **env)
{
	if (getenv(ENV_FRESH))
		return fresh();
	if (argc == 2 && strcmp(argv[1], MAIN_LINK) == 0 && fcntl(START_CTL, F_GETFD) >= 0)
		return run(argc, argv);
	unsetenv("LD_PRELOAD");
	return own_main(argc, argv, env);
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
		      void (*rtld_fini)(void), void *stack_end)
{
	__typeof__(&__libc_start_main) next = (__typeof__(&__libc_start_main))dlsym(RTLD_NEXT, "__libc_start_main");
	own_main = main;
	return next(start_main, argc, argv, init, fini, rtld_fini, stack_end);
}
