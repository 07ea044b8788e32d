// A session's own file commands. They run with the rights of the code's user: on linux in a process
// each, on Nanos in a thread each. A command is `VERB PATH …`, and its exit code 0 or an errno. linux
// has more commands (sessionmore.h).
//
//	read PATH OFFSET LENGTH   prints bytes of a regular file
//	write PATH MODE           makes or replaces a file in one step, with the folders above it.
//	                          Standard input has the contents
//	list PATH DEPTH           prints the entries of a folder, or the entry of a file. An entry is u8
//	                          kind (f, d, l, p, s, x), then mode, size and time (ns since 1970), each
//	                          as a decimal number and a blank, then the path and a NUL
//	remove PATH               removes a file, or a folder and its contents
#define _GNU_SOURCE
#include "../contract/contract.h"
#include "session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 64, COPY = 64 << 10 };

static int write_all(const struct file_command *f, int to, const char *p, size_t n)
{
	while (n > 0 && !f->cut) {
		ssize_t w = write(to, p, n);
		if (w < 0 && interrupted(errno))
			continue;
		if (w < 0)
			return errno;
		p += w;
		n -= (size_t)w;
	}
	return 0;
}

int session_copy(const struct file_command *f, int from, int to, uint64_t most)
{
	char *buf = malloc(COPY);
	int failed = buf ? 0 : ENOMEM;
	while (most > 0 && !failed && !f->cut) {
		ssize_t n = read(from, buf, most < COPY ? most : COPY);
		if (n < 0 && interrupted(errno))
			continue;
		if (n == 0)
			break;
		failed = n < 0 ? errno : write_all(f, to, buf, (size_t)n);
		most -= n < 0 ? 0 : (uint64_t)n;
	}
	free(buf);
	return f->cut ? EINTR : failed;
}

static int read_file(const struct file_command *f, const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), failed = 0;
	if (fd < 0)
		return errno;
	if (fstat(fd, &st) < 0)
		failed = errno;
	else if (S_ISDIR(st.st_mode))
		failed = EISDIR;
	else if (!S_ISREG(st.st_mode))
		failed = EINVAL;
	else if (lseek(fd, (off_t)strtoull(f->argv[2], NULL, 10), SEEK_SET) < 0)
		failed = errno;
	else
		failed = session_copy(f, fd, f->out, strtoull(f->argv[3], NULL, 10));
	close(fd);
	return failed;
}

int session_place(struct file_command *f, const char *name, mode_t mode, int (*fill)(struct file_command *f, int fd))
{
	char path[MAX_PATH], *at = f->at;
	struct stat st;
	int there = stat(name, &st) == 0;
	if (there && S_ISDIR(st.st_mode))
		return EISDIR;
	if (there && !S_ISREG(st.st_mode))
		return EINVAL;
	if (there && realpath(name, path) == NULL)  // write the target of a link, not the link
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
	snprintf(at, sizeof f->at, "%.*s.unitask-XXXXXX", (int)(base - path), path);
	int fd = mkostemp(at, O_CLOEXEC);
	if (fd < 0)
		return errno;
	int failed = fill(f, fd);
	if (failed == 0 && fchmod(fd, there ? st.st_mode & 07777 : mode) < 0)
		failed = errno;
	if (close(fd) < 0 && failed == 0)
		failed = errno;
	if (failed == 0 && rename(at, path) < 0)
		failed = errno;
	if (failed)
		unlink(at);
	return failed;
}

static int fill_all(struct file_command *f, int fd) { return session_copy(f, f->in, fd, UINT64_MAX); }

char session_kind(mode_t m)
{
	return S_ISREG(m) ? KIND_FILE : S_ISDIR(m) ? KIND_DIR : S_ISLNK(m) ? KIND_LINK : S_ISFIFO(m) ? KIND_PIPE : S_ISSOCK(m) ? KIND_SOCKET : KIND_OTHER;
}

static void list_one(FILE *out, const struct stat *st, const char *path)
{
	fprintf(out, "%c %o %llu %lld %s", session_kind(st->st_mode), (unsigned)st->st_mode & 07777, (unsigned long long)st->st_size,
	       (long long)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec, path);
	putc(0, out);
}

static int list(FILE *out, int dir, char *path, size_t len, int depth)
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
		list_one(out, &st, path);
		int sub = S_ISDIR(st.st_mode) && depth > 1 ? openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
		if (sub >= 0) {
			strcpy(path + end, "/");
			list(out, sub, path, end + 1, depth - 1);
			close(sub);
		}
		free(names[i]);
	}
	free(names);
	return 0;
}

static int list_path(FILE *out, const char *name, int most)
{
	char path[MAX_PATH];
	struct stat st;
	size_t len = strlen(name);
	if (len + 2 > sizeof path)
		return ENAMETOOLONG;
	if (stat(name, &st) < 0)
		return errno;
	if (!S_ISDIR(st.st_mode) || most < 1) {
		list_one(out, &st, name);
		return 0;
	}
	int dir = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return errno;
	memcpy(path, name, len + 1);
	if (path[len - 1] != '/')
		strcpy(path + len++, "/");
	int failed = list(out, dir, path, len, most < MAX_DEPTH ? most : MAX_DEPTH);
	close(dir);
	return failed;
}

static ssize_t print(void *cookie, const char *p, size_t n)
{
	const struct file_command *f = cookie;
	errno = write_all(f, f->out, p, n);
	return errno || f->cut ? 0 : (ssize_t)n;
}

static int list_file(struct file_command *f, const char *path)
{
	FILE *out = fopencookie(f, "w", (cookie_io_functions_t){.write = print});
	if (out == NULL)
		return errno;
	int failed = list_path(out, path, atoi(f->argv[2]));
	if (fclose(out) != 0 && failed == 0)
		failed = errno;
	return f->cut ? EINTR : failed;
}

// remove_at removes a folder's entry with its contents. Names are relative to descriptors, so no link
// leads out of the folder.
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

int session_file(struct file_command *f)
{
	const char *verb = f->argv[0], *path = f->argv[1];
	int n = 0;
	while (f->argv[n])
		n++;
	if (n < 2 || *path != '/')
		return EINVAL;
	if (strcmp(verb, "read") == 0 && n == 4)
		return read_file(f, path);
	if (strcmp(verb, "write") == 0 && n == 3)
		return session_place(f, path, (mode_t)strtoul(f->argv[2], NULL, 8), fill_all);
	if (strcmp(verb, "list") == 0 && n == 3)
		return list_file(f, path);
	if (strcmp(verb, "remove") == 0 && n == 2)
		return remove_at(AT_FDCWD, path, MAX_DEPTH);
	return EINVAL;
}
