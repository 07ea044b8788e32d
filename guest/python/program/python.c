// Runs in Python before the user's code. Python is Debian's /usr/bin/python3 with this library
// preloaded. The library replaces __libc_start_main, and so main. The new main initializes the
// interpreter, as Python's main does for `python3 FILE`. It tells the agent (agent.c) that it is up,
// and waits for the start. It puts the user's file, arguments, environment and folder into the
// configuration that Python has already read. Then it calls Python's own Py_RunMain.
//
// A process that is started for one run (ENV_FRESH) only takes its start and becomes a plain
// `python3 FILE`.
//
// On Nanos the agent is a thread of this process. The process ends with nanos_end, and can't become
// another program.
#define _GNU_SOURCE
#include "../../nanos/nanos.h"
#include "../../start/start.h"
#include "warm.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/prctl.h>

#define PROGRAM "/usr/bin/python3"

// The library for linux does not include Nanos's functions.
#pragma weak nanos_attach
#pragma weak nanos_lacks
#pragma weak nanos_on_stack
#pragma weak nanos_take_free_signals
#pragma weak nanos_unveil

extern const PyConfig *_Py_GetConfig(void);  // Python's headers declare it for other programs only until 3.12

void check(bool ok, const char *what)
{
	if (ok)
		return;
	dprintf(STDERR_FILENO, "unitask: python: %s\n", what);
	if (PyErr_Occurred())
		PyErr_Print();
	_exit(EXIT_UNKNOWN);
}

static PyObject *text(const char *s)
{
	PyObject *o = PyUnicode_DecodeFSDefault(s);
	check(o != NULL, "a string");
	return o;
}

// set_environment does what os.environ.clear() and update() do, but in the dictionary of bytes under
// os.environ, which is faster.
static void set_environment(char **env)
{
	bool locale = false, zone = false;
	PyObject *os = PyImport_ImportModule("os");
	PyObject *outer = os ? PyObject_GetAttrString(os, "environ") : NULL;
	PyObject *inner = outer ? PyObject_GetAttrString(outer, "_data") : NULL;
	check(inner != NULL && PyDict_Check(inner), "os.environ");
	PyDict_Clear(inner);
	clearenv();
	for (char **variable = env; *variable || !locale; variable++) {
		// Python sets this variable at its start (PEP 538) if the environment has no locale.
		char *name = *variable ? *variable : (char[]){"LC_CTYPE=C.UTF-8"}, *value = strchr(name, '=') + 1;
		locale |= strncmp(name, "LC_ALL=", 7) == 0 || strncmp(name, "LC_CTYPE=", 9) == 0 || strncmp(name, "LANG=", 5) == 0;
		zone |= strncmp(name, "TZ=", 3) == 0;
		PyObject *k = PyBytes_FromStringAndSize(name, value - 1 - name), *v = PyBytes_FromString(value);
		check(k != NULL && v != NULL && PyDict_SetItem(inner, k, v) == 0 && setenv(PyBytes_AS_STRING(k), value, 1) == 0, name);
		Py_DECREF(k);
		Py_DECREF(v);
		if (*variable == NULL)
			break;
	}
	Py_DECREF(inner);
	Py_DECREF(outer);
	Py_DECREF(os);
	if (!zone)
		return;
	PyObject *time = PyImport_ImportModule("time");
	PyObject *none = time ? PyObject_CallMethod(time, "tzset", NULL) : NULL;
	check(none != NULL, "time.tzset");
	Py_DECREF(none);
	Py_DECREF(time);
}

// set_list sets a list of the configuration, and the corresponding list of sys.
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

// begin gives the interpreter its arguments, environment and folder. It returns true if this
// interpreter can't run the program. Such a program has its own version of a module that the warm
// program has imported.
static bool begin(struct start *s)
{
	// Generators of Python and its modules take their seeds from the kernel at their first use, which
	// is from here on. Only the warm program uses generators earlier, and its renew reseeds them.
	start_trust(s);
	check(chdir(s->cwd) == 0, s->cwd);
	set_environment(s->env);
	PyConfig *config = (PyConfig *)_Py_GetConfig();
	check(!PyStatus_Exception(PyConfig_SetBytesString(config, &config->run_filename, s->argv[0])), s->argv[0]);
	set_list(config, &config->argv, "argv", s->argv);
	char **all = start_join("python3", s->flags, s->argv);
	set_list(config, &config->orig_argv, "orig_argv", all);
	free(all);
	return warm_begin(s->argv[0]);
}

// no_archive records in Python's cache that a file is not a ZIP archive. Python would find that out with
// much of its own code. Nothing imports from the file.
static void no_archive(const char *path)
{
	enum { MOST = 22 + 65535 };  // maximum bytes of the record at a ZIP archive's end, with its comment
	static char end[MOST];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	ssize_t n = size < 0 ? -1 : pread(fd, end, sizeof end, size > MOST ? size - MOST : 0);
	if (fd >= 0)
		close(fd);
	if (n < 0 || memmem(end, (size_t)n, "PK\5\6", 4) != NULL)
		return;
	PyObject *name = text(path), *cache = PySys_GetObject("path_importer_cache");
	check(cache != NULL && PyDict_SetItem(cache, name, Py_None) == 0, path);
	Py_DECREF(name);
}

// Rehearsals ----------------------------------------------------------------

// names returns the names in a dictionary.
static PyObject *names(PyObject *dict)
{
	PyObject *keys = PyFrozenSet_New(dict);
	check(keys != NULL, "names");
	return keys;
}

// forget_but removes all names from a dictionary except those in was, and releases was.
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

// in_child runs the throw-away program and Python to their ends.
static void in_child(struct start *s)
{
	PyOS_AfterFork_Child();
	begin(s);
	no_archive(s->argv[0]);
	exit(Py_RunMain());
}

// rehearse does all steps of a run with a throw-away program before the user's program comes. The
// code of these steps is then in memory, and the emulator has translated it. rehearse leaves nothing
// behind that the user's program could see. The first rehearsal in a template, and the first in a
// clone, begin with a child process that runs everything to the end of Python.
static void rehearse(struct start *s)
{
	static bool to_the_end = true;
	char was_in[MAX_PATH];
	check(getcwd(was_in, sizeof was_in) != NULL, "getcwd");
	warm_up();
	if (to_the_end && !nanos_attach) {
		PyOS_BeforeFork();
		start_rehearse(s, in_child, "Python");
		PyOS_AfterFork_Parent();
	}
	to_the_end = strcmp(s->rehearsal, "last") == 0;
	begin(s);
	PyObject *module = PyImport_AddModule("__main__"), *globals = PyModule_GetDict(module);  // borrowed references
	PyObject *loader = PyDict_GetItemString(globals, "__loader__");
	PyObject *modules = PyImport_GetModuleDict(), *cache = PySys_GetObject("path_importer_cache"), *path = PySys_GetObject("path");
	PyObject *had_globals = names(globals), *had_modules = names(modules), *had_cache = names(cache);
	Py_XINCREF(loader);
	PyObject *dir = text(s->cwd);
	check(PyList_Insert(path, 0, dir) == 0, "sys.path");
	Py_DECREF(dir);
	no_archive(s->argv[0]);
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
	PyGC_Collect();
}

// Main ----------------------------------------------------------------------

static int kept = -1;  // the control channel
static pid_t self;

// at_exit is the last function that a program calls. It sends the exit code to PID 1, so that PID 1
// need not wait until the kernel has cleaned up the process. Child processes of the code do not end
// this way.
static void at_exit(int code, void *arg)
{
	uint8_t word[2] = {CONTROL_EXIT, (uint8_t)code};
	(void)arg;
	// A thread that reads a terminal holds stdin's lock, for which fflush would wait.
	if (getpid() != self || ftrylockfile(stdin) != 0)
		return;
	fflush(NULL);
	if (write(kept, word, sizeof word) == sizeof word)
		for (;;)
			pause();
}

// become runs a plain `python3 FILE`, in the start's folder and with its environment.
static int become(struct start *s)
{
	if (nanos_attach) {
		nanos_lacks("a process that has imported nothing yet");
		start_word(CONTROL_STARTED);
		dprintf(STDERR_FILENO, "unitask: a module beside the code has the name of one that this machine has imported\n");
		exit(1);
	}
	start_word(CONTROL_STARTED);
	close(start_ctl);
	start_exec(PROGRAM, start_join("python3", s->flags, s->argv), s->env);
	return EXIT_UNKNOWN;
}

// protect restricts where the code may write, because Nanos's file system has no modes. So the code
// can't change files from the host.
static void protect(const struct start *s)
{
	static char writable[] = WRITABLE;
	bool inside = false;
	for (char **dir = s->read_only; *dir; dir++) {
		size_t n = strlen(*dir);
		inside |= strncmp(s->cwd, *dir, n) == 0 && (s->cwd[n] == 0 || s->cwd[n] == '/');
		nanos_unveil(*dir, "rx");
	}
	for (char *dir = strtok(writable, ":"); dir; dir = strtok(NULL, ":"))
		nanos_unveil(dir, "rwxc");
	if (!inside)
		nanos_unveil(s->cwd, "rwxc");
	nanos_unveil("/", "rx");
	nanos_unveil(NULL, NULL);
}

static int run(int argc, char **argv, char **env)
{
	(void)env;
	struct start s;
	PyConfig config;
	if (nanos_attach)
		start_ctl = nanos_attach();
	else
		on_exit(at_exit, NULL);  // registered before all others, so exit calls it last
	unsetenv("LD_PRELOAD");
	prctl(PR_SET_NAME, "python3");  // the name of a process of `python3 FILE`
	PyConfig_InitPythonConfig(&config);
	PyStatus status = PyConfig_SetBytesArgv(&config, argc, argv);
	if (!PyStatus_Exception(status))
		status = Py_InitializeFromConfig(&config);
	PyConfig_Clear(&config);
	if (PyStatus_Exception(status))
		Py_ExitStatusException(status);
	if (nanos_attach)
		nanos_take_free_signals();  // the signals that Python does not handle
	start_take(&s, rehearse);
	if (begin(&s))
		return become(&s);
	no_archive(s.argv[0]);
	if (nanos_attach)
		protect(&s);
	start_free(&s);
	if (!nanos_attach)
		kept = fcntl(start_ctl, F_DUPFD_CLOEXEC, 512);  // away from the descriptors that the code gets
	self = getpid();
	start_word(CONTROL_STARTED);
	close(start_ctl);
	return Py_RunMain();
}

static int fresh(void)
{
	struct start s;
	start_take(&s, NULL);
	start_trust(&s);
	check(chdir(s.cwd) == 0, s.cwd);
	return become(&s);
}

static int (*own_main)(int, char **, char **);

static int start_main(int argc, char **argv, char **env)
{
	if (getenv(ENV_FRESH))
		return fresh();
	bool ours = argc == 2 && strcmp(argv[1], MAIN_LINK) == 0;
	if (ours && nanos_on_stack)
		return nanos_on_stack(run, argc, argv, env);
	if (ours && fcntl(start_ctl, F_GETFD) >= 0)
		return run(argc, argv, env);
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
