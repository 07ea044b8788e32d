// Helpers to inspect /out, where the code leaves files for the host.
#ifndef UNITASK_OUT_H
#define UNITASK_OUT_H

#include "../contract/contract.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

// open_out opens /out if it is a folder. It follows no link: the code may have made /out a link to a
// place that the code can't read itself.
static inline int open_out(void)
{
	return open(OUT_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// out_empty tests whether /out is empty.
static inline int out_empty(void)
{
	int dir = open_out();
	DIR *d = dir < 0 ? NULL : fdopendir(dir);
	struct dirent *e;
	int empty = 1;
	while (d && empty && (e = readdir(d)) != NULL)
		empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
	if (d)
		closedir(d);
	else if (dir >= 0)
		close(dir);
	return empty;
}

#endif
