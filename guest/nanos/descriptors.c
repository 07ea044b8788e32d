// Reads, writes and closes files opened for appending, /dev/zero, and streams (sockets.c). All other
// calls go to the kernel unchanged.
#define _GNU_SOURCE
#include "calls.h"
#include "nanos.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct descriptor descriptors[MAX_FD];

// Nanos moves the offset of a file opened with O_APPEND to the file's end once, at the open. So the
// lock makes a move to the end and a write one step.
static pthread_mutex_t appending = PTHREAD_MUTEX_INITIALIZER;

// gather is writev. Nanos's writev miscounts when a pipe accepts only a part, and the rest would be
// lost.
long gather(int fd, const struct iovec *from, int n)
{
	long total = 0;
	if (!on_nanos)
		return call(SYS_writev, fd, from, n);
	for (int i = 0; i < n; i++) {
		if (!from[i].iov_len)
			continue;
		long r = call(SYS_write, fd, from[i].iov_base, from[i].iov_len);
		if (r < 0)
			return total ? total : r;
		total += r;
		if ((size_t)r < from[i].iov_len)
			break;
	}
	return total;
}

// scatter is readv. Nanos's readv returns 0, the end, for a connection that has nothing to read yet.
long scatter(int fd, const struct iovec *to, int n)
{
	long total = 0;
	if (!on_nanos)
		return call(SYS_readv, fd, to, n);
	for (int i = 0; i < n; i++) {
		struct pollfd p = {fd, POLLIN, 0};
		if (!to[i].iov_len)
			continue;
		if (total > 0 && poll(&p, 1, 0) <= 0)
			break;
		long r = call(SYS_read, fd, to[i].iov_base, to[i].iov_len);
		if (r < 0)
			return total ? total : r;
		total += r;
		if ((size_t)r < to[i].iov_len)
			break;
	}
	return total;
}

static ssize_t append(int fd, const struct iovec *from, int n)
{
	pthread_mutex_lock(&appending);
	long r = call(SYS_lseek, fd, 0, SEEK_END);
	if (r >= 0)
		r = gather(fd, from, n);
	pthread_mutex_unlock(&appending);
	return result(r);
}

static ssize_t fill(const struct iovec *to, int n)
{
	ssize_t total = 0;
	for (int i = 0; i < n; i++) {
		memset(to[i].iov_base, 0, to[i].iov_len);
		total += (ssize_t)to[i].iov_len;
	}
	return total;
}

// agents tests whether the code names a descriptor of the agent.
static bool agents(const struct descriptor *d) { return d && d->agents && !own_thread; }

ssize_t read(int fd, void *to, size_t n)
{
	struct descriptor *d = descriptor(fd);
	struct iovec v = {to, n};
	if (agents(d))
		return fail(EBADF);
	if (d && d->socket)
		return socket_read(d->socket, &v, 1);
	if (d && d->zero)
		return fill(&v, 1);
	return result(call(SYS_read, fd, to, n));
}

ssize_t readv(int fd, const struct iovec *to, int n)
{
	struct descriptor *d = descriptor(fd);
	if (d && d->socket)
		return socket_read(d->socket, to, n);
	if (d && d->zero)
		return fill(to, n);
	return result(scatter(fd, to, n));
}

ssize_t pread64(int fd, void *to, size_t n, off64_t at)
{
	struct descriptor *d = descriptor(fd);
	struct iovec v = {to, n};
	if (d && d->zero)
		return fill(&v, 1);
	return result(call(SYS_pread64, fd, to, n, at));
}

ssize_t pread(int fd, void *to, size_t n, off_t at) { return pread64(fd, to, n, at); }

ssize_t preadv64(int fd, const struct iovec *to, int n, off64_t at)
{
	struct descriptor *d = descriptor(fd);
	if (d && d->zero)
		return fill(to, n);
	return result(call(SYS_preadv, fd, to, n, at));
}

ssize_t preadv(int fd, const struct iovec *to, int n, off_t at) { return preadv64(fd, to, n, at); }

ssize_t write(int fd, const void *from, size_t n)
{
	struct descriptor *d = descriptor(fd);
	struct iovec v = {(void *)from, n};
	if (agents(d))
		return fail(EBADF);
	if (d && d->socket)
		return socket_write(d->socket, &v, 1);
	if (d && d->append)
		return append(fd, &v, 1);
	return result(call(SYS_write, fd, from, n));
}

ssize_t writev(int fd, const struct iovec *from, int n)
{
	struct descriptor *d = descriptor(fd);
	if (d && d->socket)
		return socket_write(d->socket, from, n);
	if (d && d->append)
		return append(fd, from, n);
	return result(gather(fd, from, n));
}

// pwrite64 appends, whatever the offset is, as on Linux (pwrite(2), BUGS).
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at)
{
	struct descriptor *d = descriptor(fd);
	struct iovec v = {(void *)from, n};
	if (d && d->append && at >= 0)
		return append(fd, &v, 1);
	return result(call(SYS_pwrite64, fd, from, n, at));
}

ssize_t pwrite(int fd, const void *from, size_t n, off_t at) { return pwrite64(fd, from, n, at); }

ssize_t pwritev64(int fd, const struct iovec *from, int n, off64_t at)
{
	struct descriptor *d = descriptor(fd);
	if (d && d->append && at >= 0)
		return append(fd, from, n);
	return result(call(SYS_pwritev, fd, from, n, at));
}

ssize_t pwritev(int fd, const struct iovec *from, int n, off_t at) { return pwritev64(fd, from, n, at); }

// lseek64 refuses descriptors that are not of files. Nanos would treat its own structure for such a
// descriptor as a file's, and write into it.
off64_t lseek64(int fd, off64_t to, int whence)
{
	struct stat st;
	long r = on_nanos ? call(SYS_fstat, fd, &st) : 0;
	if (r < 0)
		return result(r);
	if (on_nanos && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISCHR(st.st_mode))
		return fail(ESPIPE);
	return result(call(SYS_lseek, fd, to, whence));
}

off_t lseek(int fd, off_t to, int whence) { return lseek64(fd, to, whence); }

int out_of_the_way(int fd)
{
	static int next = 512;
	long moved = fd < 0 ? -EBADF : call(SYS_dup3, fd, next, O_CLOEXEC);
	if (moved < 0)
		return (int)result(moved);
	call(SYS_close, fd);
	descriptors[next].agents = true;
	return next++;
}

int close(int fd)
{
	struct descriptor *d = descriptor(fd);
	if (agents(d))
		return fail(EBADF);
	if (d) {
		struct socket *s = d->socket;
		memset(d, 0, sizeof *d);
		if (s)
			return socket_close(fd, s);
	}
	return (int)result(call(SYS_close, fd));
}

// copied copies the data about a descriptor, after a call has copied the descriptor itself.
static int copied(int from, long to)
{
	struct descriptor *d = descriptor((int)to), *was = descriptor(from);
	if (d && was && from != to) {
		*d = *was;
		if (d->socket)
			socket_keep(d->socket);
	}
	return (int)result(to);
}

int dup(int fd) { return copied(fd, call(SYS_dup, fd)); }

static int dup_to(int fd, int to, int flags)
{
	struct descriptor *d = descriptor(to);
	if (agents(d))
		return fail(EBUSY);
	if (d && d->socket && fd != to)
		close(to);
	return copied(fd, call(SYS_dup3, fd, to, flags));
}

int dup2(int fd, int to)
{
	if (fd == to)
		return (int)result(call(SYS_fcntl, fd, F_GETFD)) < 0 ? -1 : fd;
	return dup_to(fd, to, 0);
}

int dup3(int fd, int to, int flags)
{
	if (fd == to)
		return fail(EINVAL);
	return dup_to(fd, to, flags);
}

int fcntl64(int fd, int name, ...)
{
	va_list args;
	va_start(args, name);
	long value = va_arg(args, long);
	va_end(args);
	if (name == F_DUPFD || name == F_DUPFD_CLOEXEC)
		return copied(fd, call(SYS_fcntl, fd, name, value));
	long r = call(SYS_fcntl, fd, name, value);
	struct descriptor *d = descriptor(fd);
	struct stat st;
	if (d && r >= 0 && name == F_SETFL)
		d->append = value & O_APPEND && call(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode);
	if (d && d->socket && r >= 0 && name == F_SETFL)
		socket_blocks(d->socket, !(value & O_NONBLOCK));
	return (int)result(r);
}

int fcntl(int fd, int name, ...)
{
	va_list args;
	va_start(args, name);
	long value = va_arg(args, long);
	va_end(args);
	return fcntl64(fd, name, value);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	va_start(args, request);
	void *value = va_arg(args, void *);
	va_end(args);
	long r = call(SYS_ioctl, fd, request, value);
	struct descriptor *d = descriptor(fd);
	if (on_nanos && r == -ENOSYS)  // a call for terminals
		r = -ENOTTY;
	if (d && d->socket && r >= 0 && request == FIONBIO)
		socket_blocks(d->socket, *(int *)value == 0);
	return (int)result(r);
}

// stored replaces fsync. There is no writable disk, so storing has no meaning. Nanos would try to
// write, and report a failure, also for folders.
static int stored(int fd)
{
	struct stat st;
	long r = call(SYS_fstat, fd, &st);
	if (r < 0)
		return (int)result(r);
	return S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) ? 0 : fail(EINVAL);
}

int fsync(int fd) { return on_nanos ? stored(fd) : (int)result(call(SYS_fsync, fd)); }
int fdatasync(int fd) { return on_nanos ? stored(fd) : (int)result(call(SYS_fdatasync, fd)); }

// past tests whether a futex wait's time is over. Nanos takes a time limit of 0 as unlimited. abseil,
// which V8 uses to wait, passes 0 when the time is over.
static bool past(int op, const struct timespec *timeout)
{
	return (op & FUTEX_CMD_MASK) == FUTEX_WAIT && timeout && timeout->tv_sec == 0 && timeout->tv_nsec == 0;
}

// syscall handles the calls that libuv and abseil make by number.
long syscall(long n, ...)
{
	long a[6];
	va_list args;
	va_start(args, n);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (on_nanos)
		switch (n) {
		case SYS_statx:
			return result(files_statx((int)a[0], (const char *)a[1], (int)a[2], (unsigned)a[3], (struct statx *)a[4]));
		case SYS_close:
			return close((int)a[0]);
		case SYS_dup3:
			return dup3((int)a[0], (int)a[1], (int)a[2]);
		case SYS_preadv:
			return preadv64((int)a[0], (const struct iovec *)a[1], (int)a[2], a[3]);
		case SYS_pwritev:
			return pwritev64((int)a[0], (const struct iovec *)a[1], (int)a[2], a[3]);
		case SYS_futex:
			if (past((int)a[1], (const struct timespec *)a[3]))
				return fail(atomic_load((atomic_int *)a[0]) == (int)a[2] ? ETIMEDOUT : EAGAIN);
		}
	return result(call6(n, a[0], a[1], a[2], a[3], a[4], a[5]));
}
