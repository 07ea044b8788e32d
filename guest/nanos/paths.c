// Checks paths before the kernel sees them.
#define _GNU_SOURCE
#include "files.h"
#include "nanos.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>

// unsafe returns the errno of a path that the kernel must not see, or 0. For a path that does not
// exist, the kernel's permission check calls itself once for each missing folder, on a stack of 32
// KiB. So unsafe checks a long path in pieces. Everything below a missing folder is missing, too.
int unsafe(int dir, const char *path)
{
	enum { PIECE = 32 };  // parts of a path that one check may find missing
	size_t n = 0, part = 0, parts = 0;
	if (!on_nanos || path == NULL)
		return 0;
	for (; path[n]; n++) {
		if (n >= PATH_MAX - 1)
			return ENAMETOOLONG;
		if (path[n] == '/')
			part = 0;
		else if (part++ == 0)
			parts++;
		if (part > NAME_MAX)
			return ENAMETOOLONG;
	}
	if (parts <= PIECE)
		return 0;
	char head[PATH_MAX];
	struct stat st;
	size_t seen = 0;
	for (size_t i = 0; i < n; i++) {
		head[i] = path[i];
		if (path[i] != '/' && path[i + 1] == '/' && ++seen % PIECE == 0) {
			head[i + 1] = 0;
			long r = status(dir, head, &st, 0);
			if (r < 0)
				return (int)-r;
		}
	}
	return 0;
}

// storable returns the errno of a name that a file can't have, or 0. Nanos stores names as UTF-8.
int storable(const char *path)
{
	for (const unsigned char *p = (const unsigned char *)path; on_nanos && p && *p;) {
		int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2 : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;
		for (p++; more > 0 && (*p & 0xc0) == 0x80; p++)
			more--;
		if (more != 0) {
			nanos_lacks("names that are not UTF-8 text");
			return EILSEQ;
		}
	}
	return 0;
}

// touched sets the time of the folder that holds path to now.
void touched(int dir, const char *path)
{
	struct timespec now[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
	char parent[PATH_MAX];
	size_t n = strlen(path);
	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n > 0 && path[n - 1] != '/')
		n--;
	while (n > 1 && path[n - 1] == '/')
		n--;
	memcpy(parent, n ? path : ".", n ? n : 1);
	parent[n ? n : 1] = 0;
	call(SYS_utimensat, dir, parent, now, 0);
}
