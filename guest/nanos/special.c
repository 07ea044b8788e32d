// Generates files of /proc and /dev that are not in the image when the program opens them.
#define _GNU_SOURCE
#include "files.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

// stream returns the descriptor that a path below /dev or /proc names, -1 if none.
static int stream(const char *path)
{
	static const char *const names[] = {"/dev/stdin", "/dev/stdout", "/dev/stderr"};
	static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
	for (int i = 0; i < 3; i++)
		if (strcmp(path, names[i]) == 0)
			return i;
	for (int i = 0; i < 2; i++) {
		size_t n = strlen(folders[i]);
		char *end;
		if (strncmp(path, folders[i], n) != 0 || path[n] < '0' || path[n] > '9')
			continue;
		long fd = strtol(path + n, &end, 10);
		if (*end == 0 && fd < MAX_FD)
			return (int)fd;
	}
	return -1;
}

static bool is_zero(const char *path) { return strcmp(path, "/dev/zero") == 0; }

long memory_in_use(void)
{
	struct sysinfo s;
	if (call(SYS_sysinfo, &s) < 0)
		return 0;
	return (long)((s.totalram - s.freeram) / 1024);
}

// text writes the current content of a generated file of /proc (proc(5)), and returns its length. 0 if
// path is no such file.
static int text(const char *path, char *to, size_t size)
{
	struct rusage used = {0};
	struct sysinfo s = {0};
	long ticks[2], kib = memory_in_use(), pages = kib / 4;
	call(SYS_getrusage, RUSAGE_SELF, &used);
	call(SYS_sysinfo, &s);
	ticks[0] = used.ru_utime.tv_sec * 100 + used.ru_utime.tv_usec / 10000;
	ticks[1] = used.ru_stime.tv_sec * 100 + used.ru_stime.tv_usec / 10000;
	pid_t pid = (pid_t)call(SYS_getpid);
	if (strcmp(path, "/proc/self/stat") == 0)
		return snprintf(to, size, "%d (%.15s) R 1 %d %d 0 -1 4194304 0 0 0 0 %ld %ld 0 0 20 0 1 0 0 %ld %ld 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n",
				pid, program_invocation_short_name, pid, pid, ticks[0], ticks[1], kib * 1024, pages);
	if (strcmp(path, "/proc/self/statm") == 0)
		return snprintf(to, size, "%ld %ld 0 0 0 %ld 0\n", pages, pages, pages);
	if (strcmp(path, "/proc/self/status") == 0)
		return snprintf(to, size, "Name:\t%.15s\nUmask:\t%04o\nState:\tR (running)\nTgid:\t%d\nPid:\t%d\nPPid:\t1\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nVmPeak:\t%8ld kB\nVmSize:\t%8ld kB\nVmHWM:\t%8ld kB\nVmRSS:\t%8ld kB\n",
				program_invocation_short_name, file_mask(), pid, pid, kib, kib, kib, kib);
	if (strcmp(path, "/proc/uptime") == 0)
		return snprintf(to, size, "%ld.00 0.00\n", (long)s.uptime);
	if (strcmp(path, "/proc/stat") == 0)
		return snprintf(to, size, "cpu  %ld 0 %ld 0 0 0 0 0 0 0\ncpu0 %ld 0 %ld 0 0 0 0 0 0 0\n", ticks[0], ticks[1], ticks[0], ticks[1]);
	return 0;
}

// open_made opens a generated file; -1 with errno 0 if path is no such file.
int open_made(const char *path, int flags)
{
	char now[1024];
	int ends[2], n, fd = stream(path);
	errno = 0;
	if (fd >= 0 && flags & O_DIRECTORY)
		return fail(ENOTDIR);
	if (fd >= 0)
		return (fd = dup(fd)) < 0 ? fail(ENOENT) : fd;
	if (strcmp(path, "/dev/tty") == 0)
		return fail(ENXIO); // no terminal
	if (is_zero(path)) {
		if ((fd = (int)result(call(SYS_openat, AT_FDCWD, "/dev/null", flags & ~(O_CREAT | O_EXCL), 0))) >= 0)
			descriptors[fd] = (struct descriptor){.zero = true};
		return fd;
	}
	if (strncmp(path, "/proc/", 6) != 0 || (flags & O_ACCMODE) != O_RDONLY || (n = text(path, now, sizeof now)) == 0)
		return -1;
	if (call(SYS_pipe2, ends, O_CLOEXEC) < 0)
		return -1;
	call(SYS_write, ends[1], now, n);
	call(SYS_close, ends[1]);
	descriptors[ends[0]] = (struct descriptor){0};
	return ends[0];
}

// stat_made returns the status of a generated file; -1 if path is no such file.
long stat_made(const char *path, struct stat *st)
{
	int fd = stream(path);
	if (fd >= 0)
		return call(SYS_fstat, fd, st) == 0 ? 0 : -ENOENT;
	return is_zero(path) ? status(AT_FDCWD, "/dev/null", st, 0) : -1;
}
