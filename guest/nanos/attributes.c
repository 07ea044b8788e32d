// Calls that Nanos lacks, and that some Linux systems or file systems also lack. They return Linux's
// error for such a system, or a substitute.
#define _GNU_SOURCE
#include "calls.h"
#include "nanos.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

// Files have no extended attributes.
#define NONE(type, name, parameters) \
	type name parameters { return 0; }
#define NOT_ONE(type, name, parameters) \
	type name parameters { return fail(ENOTSUP); }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
NONE(ssize_t, listxattr, (const char *path, char *to, size_t n))
NONE(ssize_t, llistxattr, (const char *path, char *to, size_t n))
NONE(ssize_t, flistxattr, (int fd, char *to, size_t n))
NOT_ONE(ssize_t, getxattr, (const char *path, const char *name, void *to, size_t n))
NOT_ONE(ssize_t, lgetxattr, (const char *path, const char *name, void *to, size_t n))
NOT_ONE(ssize_t, fgetxattr, (int fd, const char *name, void *to, size_t n))
NOT_ONE(int, setxattr, (const char *path, const char *name, const void *from, size_t n, int flags))
NOT_ONE(int, lsetxattr, (const char *path, const char *name, const void *from, size_t n, int flags))
NOT_ONE(int, fsetxattr, (int fd, const char *name, const void *from, size_t n, int flags))
NOT_ONE(int, removexattr, (const char *path, const char *name))
NOT_ONE(int, lremovexattr, (const char *path, const char *name))
NOT_ONE(int, fremovexattr, (int fd, const char *name))
#pragma GCC diagnostic pop

int mkfifoat(int dir, const char *path, mode_t mode)
{
	(void)dir, (void)path, (void)mode;
	nanos_lacks("named pipes");
	return fail(ENOSYS);
}

int mkfifo(const char *path, mode_t mode) { return mkfifoat(AT_FDCWD, path, mode); }

// memfd_create makes an ordinary file without a name: Nanos has all files in memory.
int memfd_create(const char *name, unsigned flags)
{
	char path[64];
	uint64_t random;
	(void)name;
	if (flags & ~(MFD_CLOEXEC | MFD_ALLOW_SEALING))
		return fail(EINVAL);
	if (getrandom(&random, sizeof random, 0) != sizeof random)
		return -1;
	snprintf(path, sizeof path, "/dev/shm/.memfd-%016llx", (unsigned long long)random);
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd >= 0)
		unlink(path);
	return fd;
}

int nice(int more)
{
	errno = 0;
	int now = getpriority(PRIO_PROCESS, 0);
	return now == -1 && errno ? -1 : setpriority(PRIO_PROCESS, 0, now + more) < 0 ? -1 : getpriority(PRIO_PROCESS, 0);
}

// There is no terminal.
int ttyname_r(int fd, char *to, size_t n)
{
	(void)to, (void)n;
	return fcntl(fd, F_GETFD) < 0 ? EBADF : ENOTTY;
}
