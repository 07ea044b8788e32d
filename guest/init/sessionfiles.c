// A session's own commands about files. They run as the code's user, so they may do what
// it may. Each is `VERB PATH …`; what fails is an errno.
//
//	read PATH OFFSET LENGTH   bytes of a regular file go to standard output
//	write PATH MODE           a file of what comes on standard input, in one step, with the
//	                          folders above it
//	list PATH DEPTH           what is in a folder, or the one file: for each u8 kind (f, d, l, p,
//	                          s, x), mode, size and time (ns since 1970) as numbers with a blank
//	                          behind each, the path, NUL
//	remove PATH               a file, or a folder and all that is in it
#define _GNU_SOURCE
#include "../contract/contract.h"
#include "session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 64, COPY = 64 << 10 };

static int copy(int from, int to, uint64_t most)
{
	static char buf[COPY];
	while (most > 0) {
		ssize_t n = read(from, buf, most < sizeof buf ? most : sizeof buf);
		if (n == 0)
			return 0;
		if (n < 0)
			return errno;
		for (ssize_t done = 0; done < n;) {
			ssize_t w = write(to, buf + done, (size_t)(n - done));
			if (w < 0)
				return errno;
			done += w;
		}
		most -= (uint64_t)n;
	}
	return 0;
}

static int read_file(const char *path, const char *offset, const char *length)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return errno;
	if (S_ISDIR(st.st_mode))
		return EISDIR;
	if (!S_ISREG(st.st_mode))
		return EINVAL;
	if (lseek(fd, (off_t)strtoull(offset, NULL, 10), SEEK_SET) < 0)
		return errno;
	return copy(fd, STDOUT_FILENO, strtoull(length, NULL, 10));
}

static char at[MAX_PATH + 32];  // what is being written, before it has its name

static void cut(int sig)
{
	unlink(at);
	_exit(128 + sig);
}

static int write_file(const char *name, const char *mode)
{
	static char path[MAX_PATH];
	struct stat st;
	int there = stat(name, &st) == 0;
	if (there && S_ISDIR(st.st_mode))
		return EISDIR;
	if (there && !S_ISREG(st.st_mode))
		return EINVAL;
	if (there && realpath(name, path) == NULL)  // what a link leads to is written, not the link
		return errno;
	if (there && access(path, W_OK) < 0)
		return errno;
	if (!there && (size_t)snprintf(path, sizeof path, "%s", name) >= sizeof path)
		return ENAMETOOLONG;
	for (char *s = path + 1; !there && (s = strchr(s, '/')) != NULL; s++) {
		*s = 0;
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return errno;
		*s = '/';
	}
	char *base = strrchr(path, '/') + 1;
	snprintf(at, sizeof at, "%.*s.unitask-XXXXXX", (int)(base - path), path);
	int fd = mkostemp(at, O_CLOEXEC);
	if (fd < 0)
		return errno;
	signal(SIGINT, cut);
	int failed = copy(STDIN_FILENO, fd, UINT64_MAX);
	mode_t m = there ? st.st_mode & 07777 : (mode_t)strtoul(mode, NULL, 8);
	if (failed == 0 && (fchmod(fd, m) < 0 || close(fd) < 0 || rename(at, path) < 0))
		failed = errno;
	if (failed)
		unlink(at);
	return failed;
}

static char kind_of(mode_t m)
{
	return S_ISREG(m) ? KIND_FILE : S_ISDIR(m) ? KIND_DIR : S_ISLNK(m) ? KIND_LINK : S_ISFIFO(m) ? KIND_PIPE : S_ISSOCK(m) ? KIND_SOCKET : KIND_OTHER;
}

static void list_one(const struct stat *st, const char *path)
{
	printf("%c %o %llu %lld %s", kind_of(st->st_mode), (unsigned)st->st_mode & 07777, (unsigned long long)st->st_size,
	       (long long)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec, path);
	putchar(0);
}

static int list(int dir, char *path, size_t len, int depth)
{
	struct dirent **names;
	int n = scandirat(dir, ".", &names, NULL, alphasort);
	if (n < 0)
		return errno;
	for (int i = 0; i < n; i++) {
		struct stat st;
		const char *name = names[i]->d_name;
		size_t end = len + strlen(name);
		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || end + 1 >= MAX_PATH || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		strcpy(path + len, name);
		list_one(&st, path);
		int sub = S_ISDIR(st.st_mode) && depth > 1 ? openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
		if (sub >= 0) {
			strcpy(path + end, "/");
			list(sub, path, end + 1, depth - 1);
			close(sub);
		}
		free(names[i]);
	}
	free(names);
	return 0;
}

static int list_path(const char *name, const char *depth)
{
	static char path[MAX_PATH];
	struct stat st;
	size_t len = strlen(name);
	if (len + 2 > sizeof path)
		return ENAMETOOLONG;
	if (stat(name, &st) < 0)
		return errno;
	if (!S_ISDIR(st.st_mode) || atoi(depth) < 1) {
		list_one(&st, name);
		return fflush(stdout) == 0 ? 0 : errno;
	}
	int dir = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC), most = atoi(depth);
	if (dir < 0)
		return errno;
	memcpy(path, name, len + 1);
	if (path[len - 1] != '/')
		strcpy(path + len++, "/");
	int failed = list(dir, path, len, most < MAX_DEPTH ? most : MAX_DEPTH);
	return fflush(stdout) == 0 ? failed : errno;
}

// remove_at removes what is in a folder, by names below descriptors: no link leads out.
static int remove_at(int dir, const char *name, int depth)
{
	if (unlinkat(dir, name, 0) == 0)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return errno;
	int fd = depth > 0 ? openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (d == NULL)
		return depth > 0 ? errno : ELOOP;
	int failed = 0;
	for (struct dirent *e; failed == 0 && (e = readdir(d)) != NULL;)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			failed = remove_at(fd, e->d_name, depth - 1);
	closedir(d);
	if (failed == 0 && unlinkat(dir, name, AT_REMOVEDIR) < 0)
		failed = errno;
	return failed;
}

int session_file(char **argv)
{
	const char *verb = argv[0], *path = argv[1];
	int n = 0;
	while (argv[n])
		n++;
	if (n == 2 && strcmp(verb, "connect") == 0)
		return session_connect(path);
	if (n < 2 || *path != '/')
		return EINVAL;
	if (strcmp(verb, "read") == 0 && n == 4)
		return read_file(path, argv[2], argv[3]);
	if (strcmp(verb, "write") == 0 && n == 3)
		return write_file(path, argv[2]);
	if (strcmp(verb, "list") == 0 && n == 3)
		return list_path(path, argv[2]);
	if (strcmp(verb, "remove") == 0 && n == 2)
		return remove_at(AT_FDCWD, path, MAX_DEPTH);
	return EINVAL;
}
