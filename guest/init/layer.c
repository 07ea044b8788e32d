// Writes the program's changes to a container's root as a layer of an image: an archive (GNU tar)
// of the memory over the disk. A removed file becomes a whiteout (OCI image specification,
// layer.md). The program may have been hostile, so the host checks the archive.
#define _GNU_SOURCE
#include "container.h"
#include "../contract/contract.h"

#include <dirent.h>
#include <fcntl.h>
#include <search.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { BLOCK = 512, NAME = 100, COPY = 64 << 10 };

static FILE *out;

// linked is a file with several names. path is the first name that was written.
struct linked {
	ino_t ino;
	char path[];
};
static void *seen;

static int by_inode(const void *a, const void *b)
{
	ino_t x = ((const struct linked *)a)->ino, y = ((const struct linked *)b)->ino;
	return x < y ? -1 : x > y;
}

// give_up ends the archive without its last entry, so the host knows that the layer is incomplete.
static void give_up(const char *what)
{
	printf("unitask: layer: %s\n", what);
	fflush(stdout);
	_exit(1);
}

static void add(const void *data, size_t n)
{
	if (fwrite(data, 1, n, out) != n)
		give_up("the host takes no more");
}

static void pad(uint64_t n)
{
	static const char zeros[BLOCK];
	if (n % BLOCK)
		add(zeros, BLOCK - n % BLOCK);
}

static void number(char *to, size_t width, uint64_t n)
{
	if (n >> (3 * (width - 1)) == 0) {
		snprintf(to, width, "%0*llo", (int)width - 1, (unsigned long long)n);
		return;
	}
	for (size_t i = width; i-- > 0; n >>= 8)  // base 256
		to[i] = (char)n;
	to[0] |= (char)0x80;
}

static void header(char type, const char *path, const char *target, const struct stat *st, uint64_t size)
{
	char h[BLOCK] = {0};
	unsigned sum = 0;
	const char *long_one[2] = {target, path};
	for (int i = 0; i < 2; i++) {
		size_t n = strlen(long_one[i]);
		if (type == 'K' || type == 'L' || n <= NAME)
			continue;
		struct stat none = {0};
		header(i == 0 ? 'K' : 'L', "././@LongLink", "", &none, n + 1);
		add(long_one[i], n + 1);
		pad(n + 1);
	}
	strncpy(h, path, NAME);
	number(h + 100, 8, st->st_mode & 07777);
	number(h + 108, 8, st->st_uid);
	number(h + 116, 8, st->st_gid);
	number(h + 124, 12, size);
	number(h + 136, 12, st->st_mtime < 0 ? 0 : (uint64_t)st->st_mtime);
	memset(h + 148, ' ', 8);
	h[156] = type;
	strncpy(h + 157, target, NAME);
	memcpy(h + 257, "ustar  ", 8);
	for (size_t i = 0; i < BLOCK; i++)
		sum += (unsigned char)h[i];
	snprintf(h + 148, 8, "%06o", sum);
	add(h, BLOCK);
}

static void content(int dir, const char *name, const char *path, const struct stat *st)
{
	static char buf[COPY];
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		give_up(path);
	header('0', path, "", st, (uint64_t)st->st_size);
	for (off_t left = st->st_size; left > 0;) {
		ssize_t n = read(fd, buf, left < COPY ? (size_t)left : COPY);
		if (n <= 0)
			give_up(path);
		add(buf, (size_t)n);
		left -= n;
	}
	pad((uint64_t)st->st_size);
	close(fd);
}

// kept_back tests whether a path belongs to the machine (LAYER_WITHOUT).
static int kept_back(const char *path)
{
	static const char list[] = LAYER_WITHOUT ":";
	for (const char *p = list, *end; (end = strchr(p, ':')) != NULL; p = end + 1)
		if (strncmp(p + 1, path, (size_t)(end - p - 1)) == 0 && path[end - p - 1] == 0)
			return 1;
	return 0;
}

static void folder(int dir, char *path, size_t len);

static void entry(int dir, const char *name, char *path, size_t len)
{
	struct stat st;
	char target[PATH_MAX];
	size_t n = strlen(name);
	if (len + n + 2 + sizeof ".wh." > PATH_MAX || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		give_up(path);
	memcpy(path + len, name, n + 1);
	if (kept_back(path))
		return;
	if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(0, 0)) {
		memcpy(path + len, ".wh.", 4);
		memcpy(path + len + 4, name, n + 1);
		header('0', path, "", &st, 0);
		return;
	}
	if (S_ISDIR(st.st_mode)) {
		header('5', path, "", &st, 0);
		int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			give_up(path);
		path[len + n] = '/';
		folder(fd, path, len + n + 1);
		return;
	}
	if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
		return;
	if (st.st_nlink > 1) {
		struct linked *l = malloc(sizeof *l + len + n + 1);
		if (l == NULL)
			give_up("no memory");
		l->ino = st.st_ino;
		memcpy(l->path, path, len + n + 1);
		struct linked **found = tsearch(l, &seen, by_inode);
		if (found == NULL)
			give_up("no memory");
		if (*found != l) {
			header('1', path, (*found)->path, &st, 0);
			free(l);
			return;
		}
	}
	if (S_ISREG(st.st_mode)) {
		content(dir, name, path, &st);
		return;
	}
	ssize_t t = readlinkat(dir, name, target, sizeof target - 1);
	if (t <= 0)
		give_up(path);
	target[t] = 0;
	header('2', path, target, &st, 0);
}

// folder writes the contents of a folder, and closes its descriptor. It sorts the names, because
// tmpfs lists them in the order of their creation, and the same layer must get the same digest.
static void folder(int dir, char *path, size_t len)
{
	char opaque;
	struct stat none = {0};
	struct dirent **all;
	int n = scandirat(dir, ".", &all, NULL, alphasort);
	if (n < 0)
		give_up(path);
	if (fgetxattr(dir, "trusted.overlay.opaque", &opaque, 1) == 1 && opaque == 'y') {
		strcpy(path + len, ".wh..wh..opq");
		header('0', path, "", &none, 0);
	}
	for (int i = 0; i < n; i++) {
		if (strcmp(all[i]->d_name, ".") != 0 && strcmp(all[i]->d_name, "..") != 0)
			entry(dir, all[i]->d_name, path, len);
		free(all[i]);
	}
	free(all);
	close(dir);
}

int container_layer(void)
{
	static char path[PATH_MAX + 64];  // a path, with a whiteout's prefix
	static const char end[2 * BLOCK];
	struct stat st = {0};
	int ends[2];
	if (!container || pipe2(ends, O_CLOEXEC) < 0)
		return -1;
	fflush(stdout);
	pid_t pid = fork();
	if (pid != 0) {
		close(ends[1]);
		if (pid < 0)
			close(ends[0]);
		return pid < 0 ? -1 : ends[0];
	}
	int upper = container_upper();
	out = fdopen(ends[1], "w");
	if (out == NULL || upper < 0)
		give_up("no layer");
	folder(upper, path, 0);
	header('0', LAYER_END, "", &st, 0);
	add(end, sizeof end);
	if (fflush(out) != 0)
		give_up("the host takes no more");
	_exit(0);
}
