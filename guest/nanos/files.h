// Declarations that the files with file calls share.
#ifndef UNITASK_FILES_H
#define UNITASK_FILES_H

#include "calls.h"

#include <stdatomic.h>
#include <sys/stat.h>

static inline long status(int dir, const char *path, struct stat *st, int flags) { return call(SYS_newfstatat, dir, path, st, flags); }

// The library takes precedence over all others, so its own symbols are hidden.
#pragma GCC visibility push(hidden)

// paths.c
int unsafe(int dir, const char *path);   // 0, or the errno of a path that the kernel must not see
int storable(const char *path);          // 0, or the errno of a name that a file can't have
void touched(int dir, const char *path); // sets the time of the folder that holds path to now

// kept.c
enum { MODE = 1, OWNER = 2, LINKS = 4, FRESH = 8 };  // FRESH drops the data of an earlier file with this inode number
void keep(const struct stat *st, int what, mode_t mode, uid_t uid, gid_t gid, int links);
void made(int dir, const char *path, mode_t mode); // stores the mode of a new file
void mend(struct stat *st);
extern atomic_bool any_links;  // some file has had more than one link

// special.c
int open_made(const char *path, int flags);
long stat_made(const char *path, struct stat *st);

#pragma GCC visibility pop

#endif
