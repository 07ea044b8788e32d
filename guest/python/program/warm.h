// The interface of warm.c: modules that an image has imported in advance (../warm.py).
#ifndef UNITASK_WARM_H
#define UNITASK_WARM_H

#include <stdbool.h>

#include <Python.h>

#pragma GCC visibility push(hidden)

// check ends the process with a message if ok is false. At that time nobody waits for the process.
void check(bool ok, const char *what);
// warm_up runs the warm program once, if the image has one. The modules that it imports stay imported.
void warm_up(void);
// warm_begin resets the imported modules as in a new process. It returns true if this interpreter
// can't run the program. Such a program has its own version of a module that the warm program has
// imported.
bool warm_begin(const char *program);

#pragma GCC visibility pop

#endif
