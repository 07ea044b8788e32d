// Compiling and linking one file as `go run` does, without the go command.
#ifndef UNITASK_BUILD_H
#define UNITASK_BUILD_H

#include "../../start/start.h"

#ifndef GO_ROOT  // a test sets another one
#define GO_ROOT "/usr/local/go"
#endif
#define GO_BIN GO_ROOT "/bin"

// build makes the program of a start with a single file, and returns the program's path. It returns
// NULL if the go command must do the work: for modules, embedded files, cgo, directives and most
// errors. Compiler messages about the code are the same as go run's: build prints them and ends the
// process.
char *build(struct start *s);
// build_drop removes the program, and its folders if they are empty.
void build_drop(const char *program);

#endif
