// Declarations that the replaced functions share: system calls, and data about each descriptor.
#ifndef UNITASK_CALLS_H
#define UNITASK_CALLS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

// on_nanos is false until the library's constructor has run, and on linux: every function then
// passes the call on.
extern bool on_nanos;

// own_thread is true in the agent's threads, which see the kernel's own sockets.
extern __thread bool own_thread;

// call makes a system call without libc; it returns the kernel's negative errno.
static inline long call6(long n, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	long r;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#endif
}

#define CALL_6(n, a, b, c, d, e, f, ...) call6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define call(...) CALL_6(__VA_ARGS__, 0, 0, 0, 0, 0, 0)

// result converts the kernel's answer to libc's form.
static inline long result(long r)
{
	if (r >= 0 || r < -4095)
		return r;
	errno = (int)-r;
	return -1;
}

static inline int fail(int error)
{
	errno = error;
	return -1;
}

// out_of_the_way moves one of the agent's descriptors to a number beyond those of the code
// (descriptors.c). The code may close all its descriptors. -1 if fd is invalid.
int out_of_the_way(int fd);

// Data about a descriptor (descriptors.c).
enum { MAX_FD = 1 << 16 };

struct socket;

struct descriptor {
	bool append;  // a regular file, opened for appending
	bool zero;             // /dev/zero
	bool agents;  // belongs to the agent: for the code there is no such descriptor
	bool datagram;         // UDP
	struct socket *socket; // a stream (sockets.c)
};

extern struct descriptor descriptors[MAX_FD];

// descriptor returns a descriptor's data; NULL if the number is out of range.
static inline struct descriptor *descriptor(int fd)
{
	return on_nanos && fd >= 0 && fd < MAX_FD ? &descriptors[fd] : NULL;
}

// descriptors.c: gather and scatter do writev and readv with single calls, because Nanos's writev and
// readv miscount.
long gather(int fd, const struct iovec *from, int n);
long scatter(int fd, const struct iovec *to, int n);

// streams.c: calls on a stream's descriptor; -1 with errno, like the system calls.
ssize_t socket_read(struct socket *s, const struct iovec *to, int n);
ssize_t socket_write(struct socket *s, const struct iovec *from, int n);
int socket_close(int fd, struct socket *s);
void socket_keep(struct socket *s);
void socket_blocks(struct socket *s, bool blocks);

// files.c, for the other C files.
int file_mask(void);       // the umask
struct statx;
long files_statx(int dir, const char *path, int flags, unsigned mask, struct statx *to); // a negative errno
long memory_in_use(void);  // the machine's used memory in KiB: there is one process

#pragma GCC visibility pop

#endif
