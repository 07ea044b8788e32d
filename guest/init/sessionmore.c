// The file commands of sessionmore.h that write, and the window of the commands that print much.
#define _GNU_SOURCE
#include "sessionmore.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

static size_t room = FORWARD_WINDOW;

int flow_allow(void)
{
	char units[FORWARD_WINDOW / FORWARD_UNIT];
	ssize_t n = read(FLOW_CONTROL, units, sizeof units);
	if (n < 0 && errno == EINTR)
		return 0;
	if (n <= 0)
		return n < 0 ? errno : EPIPE;
	room += (size_t)n * FORWARD_UNIT;
	return 0;
}

int flow_out(const void *p, size_t n)
{
	int failed = 0;
	while (n > 0 && !failed) {
		if (room == 0) {
			failed = flow_allow();
			continue;
		}
		ssize_t w = write(STDOUT_FILENO, p, n < room ? n : room);
		if (w < 0 && errno != EINTR)
			return errno;
		if (w < 0)
			continue;
		p = (const char *)p + w;
		n -= (size_t)w;
		room -= (size_t)w;
	}
	return failed;
}

// open_regular opens a regular file to read it, or sets errno.
static int open_regular(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -1;
	if (S_ISREG(st.st_mode))
		return fd;
	close(fd);
	errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
	return -1;
}

static int stream(const char *path, off_t offset)
{
	static char buf[MAX_CHUNK];
	int fd = open_regular(path), failed = 0;
	if (fd < 0 || lseek(fd, offset, SEEK_SET) < 0)
		return errno;
	for (ssize_t n = 1; n > 0 && !failed;) {
		n = read(fd, buf, sizeof buf);
		failed = n < 0 ? errno : flow_out(buf, (size_t)n);
	}
	return failed;
}

// read_whole reads n bytes. It returns 0 or an errno, also if the input ends too early.
static int read_whole(int fd, void *p, size_t n)
{
	while (n > 0) {
		ssize_t r = read(fd, p, n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r < 0 ? errno : ECANCELED;
		p = (char *)p + r;
		n -= (size_t)r;
	}
	return 0;
}

static int write_whole(int fd, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t w = write(fd, p, n);
		if (w < 0 && errno == EINTR)
			continue;
		if (w < 0)
			return errno;
		p += w;
		n -= (size_t)w;
	}
	return 0;
}

static int fill_chunks(struct file_command *f, int fd)
{
	static char chunk[MAX_CHUNK];
	for (;;) {
		uint32_t n;
		int failed = read_whole(f->in, &n, sizeof n);
		n = ntohl(n);
		if (failed || n == 0 || n > sizeof chunk) {
			if (failed || n > 0)
				return failed ? failed : EPROTO;
			break;
		}
		if ((failed = read_whole(f->in, chunk, n)) || (failed = write_whole(fd, chunk, n)))
			return failed;
	}
	for (char **pair = f->argv + 3; pair[0] && pair[1]; pair += 2) {
		char name[MAX_PATH];
		snprintf(name, sizeof name, METADATA_PREFIX "%s", pair[0]);
		if (fsetxattr(fd, name, pair[1], strlen(pair[1]), 0) < 0)
			return errno;
	}
	return 0;
}

static int fill_joined(struct file_command *f, int fd)
{
	for (char **name = f->argv + 2; *name; name++) {
		int from = open_regular(*name), failed = from < 0 ? errno : session_copy(f, from, fd, UINT64_MAX);
		if (from >= 0)
			close(from);
		if (failed)
			return failed;
	}
	return 0;
}

static int join(struct file_command *f, const char *to)
{
	struct stat made, st;
	int failed = session_place(f, to, 0644, fill_joined);
	if (!failed && stat(to, &made) < 0)
		failed = errno;
	for (char **name = f->argv + 2; *name && !failed; name++) {
		if (stat(*name, &st) < 0) {
			if (errno != ENOENT)  // the arguments may name a file twice
				failed = errno;
		} else if (st.st_ino != made.st_ino || st.st_dev != made.st_dev) {
			failed = unlink(*name) < 0 ? errno : 0;
		}
	}
	return failed;
}

// make_above makes the folders above a path.
static int make_above(const char *name)
{
	char path[MAX_PATH];
	if ((size_t)snprintf(path, sizeof path, "%s", name) >= sizeof path)
		return ENAMETOOLONG;
	for (char *s = path + 1; (s = strchr(s, '/')) != NULL; s++) {
		*s = 0;
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return errno;
		*s = '/';
	}
	return 0;
}

static int make_folder(const char *path)
{
	int failed = make_above(path);
	return failed ? failed : mkdir(path, 0755) < 0 ? errno : 0;
}

static int move(const char *path, const char *to)
{
	struct stat st;
	if (lstat(path, &st) < 0)
		return errno;
	int failed = make_above(to);
	return failed ? failed : rename(path, to) < 0 ? errno : 0;
}

// install_sudo installs a copy of this program that runs as root.
static int install_sudo(void)
{
	static const char at[] = "/usr/local/bin/sudo";
	struct file_command f = {.in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
	int failed = f.in < 0 ? errno : make_above(at);
	if (failed)
		return failed;
	unlink(at);  // a container's image may have a link there, to a program that it needs
	int fd = open(at, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
	if (fd < 0)
		return errno;
	if ((failed = session_copy(&f, f.in, fd, UINT64_MAX)) == 0 && fchmod(fd, 04755) < 0)
		failed = errno;
	return close(fd) < 0 && !failed ? errno : failed;
}

int session_more(struct file_command *f)
{
	const char *verb = f->argv[0], *path = f->argv[1], *third = path ? f->argv[2] : NULL;
	int entry = 0, failed = 0;
	if (strcmp(verb, "sudo") == 0)
		return install_sudo();
	if (path == NULL || *path != '/')
		return -1;
	if (strcmp(verb, "watch") == 0 && third)
		return watch(path, *third == '1');
	if (strcmp(verb, "stream") == 0 && third)
		return stream(path, (off_t)strtoull(third, NULL, 10));
	if (strcmp(verb, "entries") == 0 && third)
		failed = info_entries(stdout, path, atoi(third));
	else if (strcmp(verb, "stat") == 0)
		entry = 1;
	else if (strcmp(verb, "put") == 0 && third)
		entry = 1, failed = session_place(f, path, (mode_t)strtoul(third, NULL, 8), fill_chunks);
	else if (strcmp(verb, "mkdir") == 0)
		entry = 1, failed = make_folder(path);
	else if (strcmp(verb, "move") == 0 && third)
		entry = 1, failed = move(path, third), path = third;
	else if (strcmp(verb, "join") == 0)
		entry = 1, failed = join(f, path);
	else
		return -1;
	if (entry && !failed)
		failed = info_stat(stdout, path);
	return fflush(stdout) != 0 && !failed ? errno : failed;
}
