// Compiling and linking one file as `go run` does, without the go command.
#ifndef UNITASK_BUILD_H
#define UNITASK_BUILD_H

#include "../../start/start.h"

#ifndef GO_ROOT  // a test has another one
#define GO_ROOT "/usr/local/go"
#endif
#define GO_BIN GO_ROOT "/bin"

// build makes the program of a start, whose code is of one file, and returns the program's path. NULL where that is
// work for the go command: it knows modules, embedded files, cgo and directives, and it words most errors. Messages of the compiler
// about the code are the same here: they are printed, and the process ends.
char *build(struct start *s);
// build_drop removes what build has made, and its folders, if nothing else is in them.
void build_drop(const char *program);

#endif
