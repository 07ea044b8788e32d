// Resets the modules that an image has imported in advance (../warm.py), so that each run begins as
// in a new process. At a program's end, Python need not free these modules.
#define _GNU_SOURCE
#include "../../contract/contract.h"
#include "warm.h"

#include <dirent.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static PyObject *globals;  // the warm program's globals, or NULL
static PyObject *mark;  // a list that the collector tracks from the program's start on
static PyObject *get_objects, *get_debug, *callbacks, *unfreeze;  // from the module gc
// Stream types of the module io: of files, in memory, and on top of another stream, which is their
// attribute below.
static struct stream { const char *name; bool of_file; const char *below; PyTypeObject *type; } kinds[] = {{.name = "FileIO", .of_file = true}, {.name = "BytesIO"}, {.name = "StringIO"},
	{.name = "BufferedReader", .below = "raw"}, {.name = "BufferedWriter", .below = "raw"}, {.name = "BufferedRandom", .below = "raw"}, {.name = "TextIOWrapper", .below = "buffer"}};
// Functions that remove a weak reference from its collection, with their modules.
static struct { const char *module, *name; PyObject *globals; } removers[] = {{"_weakrefset", "_remove", NULL}, {"weakref", "remove", NULL}};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static PyObject *get(const char *name)
{
	PyObject *o = PyDict_GetItemString(globals, name);  // borrowed from an object that is never freed
	check(o != NULL, name);
	return o;
}

// asks calls a function of the warm program, and returns whether its result is true.
static bool asks(const char *function, const char *program)
{
	PyObject *answer = program ? PyObject_CallFunction(get(function), "O&", PyUnicode_DecodeFSDefault, program) : PyObject_CallNoArgs(get(function));
	check(answer != NULL, function);
	bool yes = PyObject_IsTrue(answer) == 1;
	Py_DECREF(answer);
	return yes;
}

// Begin ---------------------------------------------------------------------

// meets tests whether a folder has an entry whose name, up to its first dot, is the name of an imported
// module. It ignores the entries in there.
static bool meets(const char *folder, PyObject *there)
{
	PyObject *imported = get("imported");
	DIR *d = opendir(folder);
	bool yes = false;
	for (struct dirent *e; d && !yes && (e = readdir(d)) != NULL;) {
		size_t n = strcspn(e->d_name, ".");
		PyObject *name = n ? PyUnicode_DecodeFSDefaultAndSize(e->d_name, (Py_ssize_t)n) : NULL;
		if (name == NULL) {
			PyErr_Clear();
			continue;
		}
		if ((yes = PySet_Contains(imported, name) == 1) && there) {
			PyObject *whole = PyUnicode_DecodeFSDefault(e->d_name);
			yes = whole == NULL || PySet_Contains(there, whole) != 1;
			Py_XDECREF(whole);
			PyErr_Clear();
		}
		Py_DECREF(name);
	}
	if (d)
		closedir(d);
	return yes;
}

// reseed seeds numpy's default generator, a Mersenne Twister (mt19937_state in numpy's mt19937.h:
// uint32_t key[624]; int pos), as a new process does.
static void reseed(void)
{
	enum { WORDS = 624 };
	uint32_t *state = PyLong_AsVoidPtr(get("mersenne"));
	if (state == NULL)
		return;
	for (char *to = (char *)state, *end = (char *)(state + WORDS); to < end;) {
		ssize_t n = getrandom(to, (size_t)(end - to), 0);
		check(n > 0 || errno == EINTR, "getrandom");
		to += n > 0 ? n : 0;
	}
	state[0] = 0x80000000;
	state[WORDS] = WORDS - 1;
}

static int count_loads(struct dl_phdr_info *info, size_t size, void *loads)
{
	(void)size;
	*(unsigned long long *)loads = info->dlpi_adds;
	return 1;
}

// loads returns how many libraries have been loaded so far.
static unsigned long long loads(void)
{
	unsigned long long n = 0;
	dl_iterate_phdr(count_loads, &n);
	return n;
}

static const char *const streams[] = {"stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"};

// State at a program's begin. If the program changes it, the program's end can have visible effects.
// Objects of libraries that were loaded may write when they are freed, without a finalizer. The
// streams are only compared, so they may be gone.
static struct { unsigned long long loads; PyObject *filters, *streams[COUNT(streams)]; } began;

// filters returns the list of warnings' filters; NULL if the program has replaced it by something else.
static PyObject *filters(void)
{
	PyObject *warnings = PyDict_GetItemString(get("modules"), "warnings");
	PyObject *list = warnings && PyModule_Check(warnings) ? PyDict_GetItemString(PyModule_GetDict(warnings), "filters") : NULL;
	return list && PyList_Check(list) ? list : NULL;
}

static void look(void)
{
	PyObject *list = filters();
	began.loads = loads();
	Py_XDECREF(began.filters);
	check((began.filters = list ? PyList_AsTuple(list) : PyTuple_New(0)) != NULL, "filters of warnings");
	for (size_t i = 0; i < COUNT(streams); i++)
		began.streams[i] = PySys_GetObject(streams[i]);
}

// filtered tests whether the filters of warnings are unchanged.
static bool filtered(void)
{
	PyObject *list = filters();
	Py_ssize_t n = PyTuple_GET_SIZE(began.filters);
	bool same = (list ? PyList_GET_SIZE(list) : 0) == n;
	for (Py_ssize_t i = 0; same && i < n; i++)
		same = PyList_GET_ITEM(list, i) == PyTuple_GET_ITEM(began.filters, i);
	return same;
}

bool warm_begin(const char *program)
{
	if (!globals)
		return false;
	Py_XDECREF(mark);
	check((mark = PyList_New(0)) != NULL, "a list");
	reseed();
	asks("renew", NULL);
	char *path = realpath(program, NULL), *slash = path ? strrchr(path, '/') : NULL;
	if (slash)
		*(slash == path ? slash + 1 : slash) = 0;
	// Call the slower check in Python only if a conflict is possible.
	bool may = slash == NULL || meets(path, NULL) || meets(PyUnicode_AsUTF8(get("packages")), get("there"));
	free(path);
	bool other = (may && asks("shadowed", program)) || (access("matplotlibrc", F_OK) == 0 && asks("settings", NULL));
	look();
	return other;
}

// End -----------------------------------------------------------------------

static bool is(PyObject *name, const char *want) { return name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, want) == 0; }

// forgets tests whether a function only removes a weak reference from its collection, as functions of
// abstract classes (_abc), _weakrefset and weakref do.
static bool forgets(PyObject *function)
{
	if (PyCFunction_Check(function))
		return strcmp(((PyCFunctionObject *)function)->m_ml->ml_name, "_destroy") == 0;
	if (!PyFunction_Check(function))
		return false;
	PyObject *of = PyFunction_GET_GLOBALS(function), *name = ((PyFunctionObject *)function)->func_name;
	for (size_t i = 0; i < COUNT(removers); i++)
		if (of == removers[i].globals)
			return is(name, removers[i].name);
	return false;
}

// own tests whether a stream has unusual attributes. The program may have replaced the stream's
// functions to close or flush it.
static bool own(PyObject *o)
{
	PyObject **dict = _PyObject_GetDictPtr(o), *name, *value;
	for (Py_ssize_t at = 0; dict && *dict && PyDict_Next(*dict, &at, &name, &value);)
		if (!is(name, "mode") && !is(name, "name") && !is(name, "__IOBase_closed"))
			return true;
	return false;
}

// kind returns a stream's entry in kinds; NULL if it has none.
static struct stream *kind(PyObject *o)
{
	for (size_t i = 0; i < COUNT(kinds); i++)
		if (Py_TYPE(o) == kinds[i].type)
			return own(o) ? NULL : &kinds[i];
	return NULL;
}

// bottom returns the stream at the bottom of at most deep streams, as a new reference. It returns NULL
// if a stream has no known type.
static PyObject *bottom(PyObject *o, int deep)
{
	struct stream *s = deep > 0 ? kind(o) : NULL;
	if (s == NULL || s->below == NULL)
		return s ? Py_NewRef(o) : NULL;
	PyObject *of = PyObject_GetAttrString(o, s->below), *last = of ? bottom(of, deep - 1) : NULL;
	Py_XDECREF(of);
	PyErr_Clear();  // the program may have detached the other stream
	return last;
}

enum { DEEP = 3 };  // streams that open() puts on top of each other

// closed tests whether an object is a stream in memory, or a closed stream of a file.
static bool closed(PyObject *o)
{
	PyObject *last = bottom(o, DEEP), *over = last && kind(last)->of_file ? PyObject_GetAttrString(last, "closed") : NULL;
	bool yes = last && (!kind(last)->of_file || over == Py_True);
	Py_XDECREF(over);
	Py_XDECREF(last);
	PyErr_Clear();
	return yes;
}

// opened tests whether an object is a stream of a file.
static bool opened(PyObject *o)
{
	PyObject *last = bottom(o, DEEP);
	bool yes = last && kind(last)->of_file;
	Py_XDECREF(last);
	return yes;
}

static bool finalized(PyTypeObject *type) { return type->tp_finalize || type->tp_del; }

// silent tests whether freeing an object has no visible effect: it must run none of the program's
// code, and write nothing.
static bool silent(PyObject *o)
{
	PyTypeObject *type = Py_TYPE(o);
	if (finalized(type))
		return closed(o);
	if (PyType_Check(o))  // a type may have objects that the collector does not track
		return PyType_HasFeature((PyTypeObject *)o, Py_TPFLAGS_HAVE_GC) || !finalized((PyTypeObject *)o);
	if (PyWeakref_Check(o)) {
		PyObject *call = ((PyWeakReference *)o)->wr_callback;
		return call == NULL || forgets(call);
	}
	return true;
}

// plain tests whether Python would call none of the program's own functions at its end. The program
// must also have loaded no library and changed no filter of warnings.
static bool plain(void)
{
	if (loads() != began.loads || !filtered())
		return false;
	for (size_t i = 0; i < COUNT(streams); i++) {  // Python flushes these, and the collector does not track them
		PyObject *o = PySys_GetObject(streams[i]);
		if (o == NULL || o != began.streams[i] || !opened(o))
			return false;
	}
	return PyEval_GetFrame() == NULL;  // otherwise the program itself has called atexit's functions
}

// roomy tests whether there is memory for a list of all objects. Each object takes at least five times
// as much as its entry in the list.
static bool roomy(void)
{
	struct sysinfo memory;
	return sysinfo(&memory) == 0 && memory.freeram > memory.totalram / 5;
}

static bool is_false(PyObject *o) { return o && PyObject_IsTrue(o) == 0; }

// silently tests whether freeing the program's objects has no visible effect.
static bool silently(void)
{
	PyThreadState *first = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
	if (PyThreadState_Next(first) != NULL || !plain() || !is_false(callbacks) || !roomy())
		return false;
	PyObject *debug = PyObject_CallNoArgs(get_debug), *made = is_false(debug) ? PyObject_CallNoArgs(get_objects) : NULL, *before = get("modules");
	bool marked = false, yes = made != NULL;
	for (Py_ssize_t i = 0; yes && i < PyList_GET_SIZE(made); i++) {
		PyObject *o = PyList_GET_ITEM(made, i);
		marked |= o == mark;
		yes = silent(o) && o != before;
	}
	Py_XDECREF(made);
	Py_XDECREF(debug);
	return yes && marked;  // without marked, the program has frozen its objects, or unfrozen the warm program's
}

// leave is the last function that an exit calls (atexit). After it Python frees all modules, because
// freeing objects may have visible effects. Most of the modules are the warm program's. If the
// program has no objects with such effects, leave removes the warm modules from sys.modules, so Python
// never frees them. Otherwise leave makes the collector track them again, as in a new process.
static PyObject *leave(PyObject *self, PyObject *none)
{
	(void)self, (void)none;
	if (!globals)  // the program has found this function, and calls it again
		Py_RETURN_NONE;
	bool yes = silently();
	PyErr_Clear();
	if (!yes) {
		PyDict_Clear(get("modules"));
		Py_CLEAR(globals);
		return PyObject_CallNoArgs(unfreeze);
	}
	(void)PySys_Audit("unitask.leave", NULL);  // tests look for this event
	PyErr_Clear();
	PyObject *now = PyImport_GetModuleDict(), *modules = get("modules"), *name, *module;
	for (Py_ssize_t at = 0; PyDict_Next(modules, &at, &name, &module);)
		if (PyDict_GetItem(now, name) == module && PyDict_DelItem(now, name) < 0)
			PyErr_Clear();
	Py_RETURN_NONE;
}

// Up ------------------------------------------------------------------------

static PyObject *attribute(const char *module, const char *name)
{
	PyObject *m = PyImport_ImportModule(module), *o = m ? PyObject_GetAttrString(m, name) : NULL;
	check(o != NULL, name);
	Py_DECREF(m);
	return o;
}

void warm_up(void)
{
	static PyMethodDef last = {"leave", leave, METH_NOARGS, NULL};
	FILE *f = globals ? NULL : fopen(WARM, "rb");
	if (f == NULL)
		return;
	PyObject *function = PyCFunction_New(&last, NULL), *registers = attribute("atexit", "register");
	PyObject *none = PyObject_CallOneArg(registers, function);  // atexit calls the first function last
	check(none != NULL, "atexit");
	Py_DECREF(none);
	Py_DECREF(registers);
	Py_DECREF(function);
	get_objects = attribute("gc", "get_objects");
	get_debug = attribute("gc", "get_debug");
	callbacks = attribute("gc", "callbacks");
	unfreeze = attribute("gc", "unfreeze");
	for (size_t i = 0; i < COUNT(kinds); i++)
		kinds[i].type = (PyTypeObject *)attribute("io", kinds[i].name);
	for (size_t i = 0; i < COUNT(removers); i++)
		removers[i].globals = attribute(removers[i].module, "__dict__");
	globals = PyDict_New();
	check(globals != NULL && PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins()) == 0, WARM);
	none = PyRun_FileEx(f, WARM, Py_file_input, globals, globals, 1);
	check(none != NULL, WARM);
	Py_DECREF(none);
}
