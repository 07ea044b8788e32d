// The interface of warm.c: modules that an image has imported in advance (../warm.py).
#ifndef UNITASK_WARM_H
#define UNITASK_WARM_H

#include <stdbool.h>

#include <Python.h>

#pragma GCC visibility push(hidden)

// check ends the process after an error: nobody waits for it at that time.
void check(bool ok, const char *what);
// warm_up runs the warm program, if the image has one and it has not been run. Its imports are
// never undone.
void warm_up(void);
// warm_begin resets the imported modules as in a new process. It returns true if this interpreter
// can't run the program, because the program would import other modules than the warm program has.
bool warm_begin(const char *program);

#pragma GCC visibility pop

#endif
