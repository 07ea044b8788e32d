// Reports files that the code leaves in its folder instead of /out. They are lost with the machine.
#define _GNU_SOURCE
#include "files.h"
#include "frames.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	MOST_LOOKED = 4096,  // inspected entries of the folder: hostile code may have made any number
	MOST_DEEP = 8,       // levels of nested folders
	MOST_LEFT = 8,       // reported names
	MAX_NAME = 255,
};

static char folder[MAX_PATH];  // "" if nobody has asked
static struct timespec began;

int look_at(const uint8_t *path, size_t n)
{
	if (n == 0 || n >= sizeof folder || path[0] != '/')
		return -1;
	memcpy(folder, path, n);
	folder[n] = 0;
	return 0;
}

// Files from the host have an earlier time, because the kernel gives files the last clock tick's.
void look_from(void) { clock_gettime(CLOCK_REALTIME, &began); }

static int later(const struct timespec *t)
{
	return t->tv_sec > began.tv_sec || (t->tv_sec == began.tv_sec && t->tv_nsec >= began.tv_nsec);
}

// is_hidden is true for a hidden name, and for Python's caches.
static int is_hidden(const char *name) { return name[0] == '.' || strcmp(name, "__pycache__") == 0; }

// only_hidden is true for a changed folder in which only hidden entries are new, at any depth.
static int only_hidden(int at, const char *name, int depth, int *budget)
{
	int hidden = 0, fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	if (d == NULL) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	while ((e = readdir(d)) != NULL) {
		struct stat st;
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (--*budget < 0)
			break;
		if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !later(&st.st_ctim))
			continue;
		hidden = is_hidden(e->d_name) ||
			 (S_ISDIR(st.st_mode) && depth < MOST_DEEP && only_hidden(fd, e->d_name, depth + 1, budget));
		if (!hidden)
			break;
	}
	closedir(d);
	return hidden;
}

// tell_left sends how many files and folders in the folder are new or changed, and some of their
// names, a folder's with a slash. It does not count hidden names and Python's caches.
void tell_left(void)
{
	static uint8_t text[4 + MOST_LEFT * (MAX_NAME + 2)];
	size_t len = 4;
	uint32_t count = 0;
	int budget = MOST_LOOKED;  // for the entries of subfolders
	int dir = folder[0] ? open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	DIR *d = dir < 0 ? NULL : fdopendir(dir);
	struct dirent *e;
	for (int i = 0; d != NULL && i < MOST_LOOKED && (e = readdir(d)) != NULL; i++) {
		struct stat st;
		size_t n = strlen(e->d_name);
		if (is_hidden(e->d_name) || n > MAX_NAME || fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) || !later(&st.st_ctim))
			continue;
		if (S_ISDIR(st.st_mode) && only_hidden(dir, e->d_name, 0, &budget))
			continue;
		if (count++ >= MOST_LEFT)
			continue;
		memcpy(text + len, e->d_name, n);
		len += n;
		if (S_ISDIR(st.st_mode))
			text[len++] = '/';
		text[len++] = 0;
	}
	if (d)
		closedir(d);
	else if (dir >= 0)
		close(dir);
	put32(text, count);
	if (count > 0)
		out_frame(FRAME_LEFT, text, len);
}
