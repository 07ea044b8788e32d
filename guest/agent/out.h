// /out, where the code leaves what is to come back, as the programs that look there see it.
#ifndef UNITASK_OUT_H
#define UNITASK_OUT_H

#include "../contract/contract.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

// open_out opens /out, if that is a folder: a link, which the code may have put there, leads where
// it can't read itself.
static inline int open_out(void)
{
	return open(OUT_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// out_empty says that there is nothing in /out.
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
