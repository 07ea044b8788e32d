// Waits for streams. The kernel checks a stream when a wait begins, and misses most later events of
// the other end, which another thread uses. streams.c wakes waits by epoll. Waits by poll or select
// check again after a short time.
#define _GNU_SOURCE
#include "calls.h"

#include <poll.h>
#include <string.h>
#include <sys/select.h>
#include <time.h>

enum { AGAIN_NS = 5000000, SECOND = 1000000000, SIGNALS = 8 };  // SIGNALS: bytes of a signal set in the kernel's form

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * (int64_t)SECOND + t.tv_nsec;
}

// A wait, with or without a time limit.
struct wait {
	bool endless;
	int64_t end;
	struct timespec slice;
};

static struct wait wait_of(const struct timespec *timeout)
{
	struct wait w = {.endless = timeout == NULL};
	if (timeout)
		w.end = now() + timeout->tv_sec * (int64_t)SECOND + timeout->tv_nsec;
	return w;
}

// slice returns how long to wait until the next check.
static struct timespec *slice(struct wait *w)
{
	int64_t left = w->endless ? AGAIN_NS : w->end - now();
	w->slice = (struct timespec){.tv_nsec = left < 0 ? 0 : left > AGAIN_NS ? AGAIN_NS : left};
	return &w->slice;
}

static bool over(const struct wait *w) { return !w->endless && now() >= w->end; }

static bool is_stream(int fd)
{
	struct descriptor *d = descriptor(fd);
	return d && d->socket && !own_thread;
}

static bool has_streams(const struct pollfd *p, nfds_t n)
{
	for (nfds_t i = 0; i < n; i++)
		if (is_stream(p[i].fd))
			return true;
	return false;
}

int ppoll(struct pollfd *p, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct wait w = wait_of(timeout);
	if (!has_streams(p, n)) {
		struct timespec copy = timeout ? *timeout : (struct timespec){0};  // the kernel may write to it
		return (int)result(call(SYS_ppoll, p, n, timeout ? &copy : NULL, mask, SIGNALS));
	}
	for (;;) {
		long r = call(SYS_ppoll, p, n, slice(&w), mask, SIGNALS);
		if (r != 0 || over(&w))
			return (int)result(r);
	}
}

int poll(struct pollfd *p, nfds_t n, int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
#if defined(SYS_poll)
	if (!has_streams(p, n))  // always so in the agent's threads
		return (int)result(call(SYS_poll, p, n, ms));
#endif
	return ppoll(p, n, ms < 0 ? NULL : &t, NULL);
}

int pselect(int n, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout, const sigset_t *mask)
{
	fd_set *sets[] = {in, out, except}, kept[3];
	struct {
		const sigset_t *mask;
		size_t size;
	} masked = {mask, SIGNALS};
	struct wait w = wait_of(timeout);
	bool streams = false;
	if (n < 0 || n > FD_SETSIZE)
		return fail(EINVAL);
	for (int i = 0; i < 3; i++) {
		for (int fd = 0; sets[i] && fd < n && !streams; fd++)
			streams = FD_ISSET(fd, sets[i]) && is_stream(fd);
		if (sets[i])
			kept[i] = *sets[i];
	}
	if (!streams) {
		struct timespec copy = timeout ? *timeout : (struct timespec){0};
		return (int)result(call(SYS_pselect6, n, in, out, except, timeout ? &copy : NULL, &masked));
	}
	for (;;) {
		long r = call(SYS_pselect6, n, in, out, except, slice(&w), &masked);
		if (r != 0 || over(&w))
			return (int)result(r);
		for (int i = 0; i < 3; i++)
			if (sets[i])
				*sets[i] = kept[i];
	}
}

int select(int n, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	struct timespec t = {0};
	if (timeout)
		t = (struct timespec){timeout->tv_sec, timeout->tv_usec * 1000};
	return pselect(n, in, out, except, timeout ? &t : NULL, NULL);
}
