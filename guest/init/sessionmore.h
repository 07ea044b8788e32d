// Further file commands of a session on linux, each in a process of its own:
//
//	stat PATH                the entry itself, in detail (sessioninfo.c has the format)
//	entries PATH DEPTH       what is in a folder, in detail
//	stream PATH OFFSET       bytes of a regular file, within a window
//	put PATH MODE [NAME VALUE]…  a file of what comes on standard input, in one step, with metadata.
//	                         Input is chunks, each with its length (4 bytes, big-endian) before it;
//	                         an empty one is the end. Its entry goes to standard output
//	mkdir PATH               a folder, and those above it; its entry
//	move PATH TO             to a new name, with the folders above it; its entry
//	join PATH FILE…          the contents of files, one after the other, which are then removed; its
//	                         entry
//	watch PATH RECURSIVE     changes below a folder, within a window (sessionwatch.c has the format)
//	sudo                     as root: makes PATH have `sudo`
//
// The window is FORWARD_WINDOW bytes of output. Each byte on descriptor 3 allows FORWARD_UNIT more.
#ifndef UNITASK_SESSIONMORE_H
#define UNITASK_SESSIONMORE_H

#include "session.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>

#pragma GCC visibility push(hidden)

// session_more runs one of these commands. It returns the exit code, or -1 for another command.
int session_more(struct file_command *f);

// info_stat prints an entry, and info_entries those of a folder.
int info_stat(FILE *out, const char *path);
int info_entries(FILE *out, const char *path, int depth);

// watch prints changes below a folder, until the host ends it.
int watch(const char *path, int recursive);

// flow_out writes within the window; it waits for more room. An error is an errno.
int flow_out(const void *p, size_t n);

enum { FLOW_CONTROL = 3 };

// flow_allow reads how much more the window has. An error, or the host's end, is an errno.
int flow_allow(void);

// sudo is that program: the session's user needs no password.
int sudo(int argc, char **argv);

#pragma GCC visibility pop

#endif
