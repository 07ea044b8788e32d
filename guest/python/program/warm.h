// What an image has imported ahead (../warm.py), on the side of C.
#ifndef UNITASK_WARM_H
#define UNITASK_WARM_H

#include <stdbool.h>

#include <Python.h>

#pragma GCC visibility push(hidden)

// check ends the process when something went wrong: nobody waits for it then.
void check(bool ok, const char *what);
// warm_up runs the warm program, if the image has one and it has not been run: what it imports stays for good.
void warm_up(void);
// warm_begin has what is imported begin as in a new process. It returns whether that can't do: the program
// would import other modules than the warm program has.
bool warm_begin(const char *program);

#pragma GCC visibility pop

#endif
