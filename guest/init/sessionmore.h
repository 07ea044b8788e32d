// Further file commands of a session on linux, each in a process of its own:
//
//	stat PATH                prints the entry of PATH itself, in detail (sessioninfo.c has the format)
//	entries PATH DEPTH       prints the entries of a folder, in detail
//	stream PATH OFFSET       prints bytes of a regular file, within a window
//	put PATH MODE [NAME VALUE]…  makes or replaces a file in one step, with metadata, and prints its
//	                         entry. Input is chunks, each with its length (4 bytes, big-endian)
//	                         before it; an empty chunk is the end
//	mkdir PATH               makes a folder, and the folders above it; prints its entry
//	move PATH TO             renames a file or folder, and makes the folders above TO; prints its
//	                         entry
//	join PATH FILE…          joins the contents of files to one file, removes the files, and prints
//	                         the entry
//	watch PATH RECURSIVE     prints changes below a folder, within a window (sessionwatch.c has the
//	                         format)
//	sudo                     installs `sudo`; needs root
//
// The window is FORWARD_WINDOW bytes of output. Each byte on descriptor 3 allows FORWARD_UNIT more.
#ifndef UNITASK_SESSIONMORE_H
#define UNITASK_SESSIONMORE_H

#include "session.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>

#pragma GCC visibility push(hidden)

// session_more runs a further file command. It returns the exit code, or -1 if f is none.
int session_more(struct file_command *f);

// info_stat prints the entry of a path, and info_entries the entries of a folder. They return 0 or an
// errno.
int info_stat(FILE *out, const char *path);
int info_entries(FILE *out, const char *path, int depth);

// watch prints changes below a folder, until the host ends it.
int watch(const char *path, int recursive);

// flow_out writes within the window, and waits for more room if needed. It returns 0 or an errno.
int flow_out(const void *p, size_t n);

enum { FLOW_CONTROL = 3 };

// flow_allow reads by how much the window grows. It returns 0 or an errno, also at the host's end.
int flow_allow(void);

// sudo is the program that the command sudo installs. The session's user needs no password.
int sudo(int argc, char **argv);

#pragma GCC visibility pop

#endif
