// The calls on a connection within this machine (sockets.c), and on datagrams. For a connection to the
// outside, it has the calls that Nanos does wrong.
#define _GNU_SOURCE
#include "nanos.h"
#include "sockets.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
	MAX_DATAGRAM = 65461,  // bytes of a UDP datagram that Nanos's loopback carries
	LINUX_DATAGRAM = 65507,  // bytes that Linux accepts: IPv4's maximum length without the headers
};

void socket_blocks(struct socket *s, bool blocks) { s->nonblocking = !blocks; }

void socket_keep(struct socket *s) { __atomic_add_fetch(&s->copies, 1, __ATOMIC_SEQ_CST); }

// wake makes the thread that waits for events of s check again. Nanos checks a socket when a wait
// begins, and misses most later events of the other end. The caller holds the lock.
static void wake(struct socket *s)
{
	if (s && s->epoll >= 0 && !pthread_equal(s->waits, pthread_self()))
		call(SYS_epoll_ctl, s->epoll, EPOLL_CTL_MOD, s->fd, &s->event);
}

// mark makes the peer of an end that sends no more readable, so that the peer reads the end. The caller
// holds the lock.
static void mark(struct socket *s)
{
	if (s->shut && !s->marked && s->peer && call(SYS_write, s->fd, "", 1) == 1)
		s->marked = true;
}

// until waits until a blocking socket is ready, because no call may block while it holds the lock. It
// returns false when a signal came.
static bool until(struct socket *s, short events)
{
	if (s->nonblocking)
		return true;
	if (call(SYS_fcntl, s->fd, F_GETFL) & O_NONBLOCK) {
		s->nonblocking = true;
		return true;
	}
	struct pollfd p = {s->fd, events, 0};
	int n;
	while ((n = poll(&p, 1, 10)) == 0)
		;
	return n > 0;
}

static size_t length(const struct iovec *v, int n)
{
	size_t total = 0;
	for (int i = 0; i < n; i++)
		total += v[i].iov_len;
	return total;
}

// outside_error returns the kernel's error for a connection that has ended. If both sides have sent
// their end, the kernel reports ENOTCONN, which is no error.
static int outside_error(struct socket *s)
{
	int error = 0;
	socklen_t len = sizeof error;
	return call(SYS_getsockopt, s->fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error != ENOTCONN ? error : 0;
}

// outside_state returns a connection's TCP state, such as TCP_CLOSE_WAIT; -1 if the kernel reports
// none.
static int outside_state(struct socket *s)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof info;
	return call(SYS_getsockopt, s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 ? info.tcpi_state : -1;
}

// nanos_reset runs in the agent's thread. A shutdown wakes the threads that wait for a socket. close
// takes the same lock before it frees a socket.
void nanos_reset(void)
{
	pthread_mutex_lock(&all_lock);
	for (int fd = 0; fd < MAX_FD; fd++) {
		struct socket *s = descriptors[fd].socket;
		if (s == NULL || s->state != OUTSIDE || s->cut != LIVES)
			continue;
		s->cut = CUT;
		call(SYS_shutdown, s->fd, SHUT_RDWR);
	}
	pthread_mutex_unlock(&all_lock);
}

// cut_meanwhile returns true once if a connection was cut while a call on fd waited. The kernel then
// reports a shutdown, which must not look like the end of the peer's data. If another thread has
// closed the socket, s no longer exists.
static bool cut_meanwhile(struct socket *s, int fd)
{
	if (of(fd) != s || s->cut != CUT)
		return false;
	s->cut = CUT_TOLD;
	return true;
}

// shut_meanwhile tests whether a write failed because of a shutdown. A write that began later fails
// with EPIPE, a write that was waiting with ENOTCONN.
static bool shut_meanwhile(long r) { return r == -EPIPE || r == -ENOTCONN; }

// read_outside corrects two errors of reads. After our own end, the kernel reports that the peer has
// also sent its end. And it never reports a reset.
static ssize_t read_outside(struct socket *s, const struct iovec *to, int n)
{
	if (s->cut == CUT_TOLD)
		return 0;
	if (s->cut == CUT) {
		s->cut = CUT_TOLD;
		return fail(ECONNRESET);
	}
	int fd = s->fd;
	long r = scatter(fd, to, n);
	if (r != 0 || length(to, n) == 0)
		return result(r);
	if (cut_meanwhile(s, fd))
		return fail(ECONNRESET);
	int error = outside_error(s), state = s->shut && !error ? outside_state(s) : -1;
	if (error)
		return fail(error);
	if (state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2) {
		struct timespec little = {.tv_nsec = 1000000};  // poll reports the socket as readable all the time
		nanosleep(&little, NULL);
		return fail(EAGAIN);
	}
	if (s->late)
		call(SYS_shutdown, s->fd, SHUT_WR);
	s->late = false;
	return 0;
}

// shutdown_outside delays a shutdown while the program may not have read all data. When both sides
// have sent their end, the kernel drops the rest.
static int shutdown_outside(struct socket *s, int how)
{
	if (how == SHUT_WR && !s->shut && outside_state(s) == TCP_CLOSE_WAIT) {
		s->late = s->shut = true;
		return 0;
	}
	long r = call(SYS_shutdown, s->fd, how);
	if (r == 0 && how != SHUT_RD)
		s->shut = true;
	return (int)result(r);
}

ssize_t socket_read(struct socket *s, const struct iovec *to, int n)
{
	if (s->state == OUTSIDE)
		return read_outside(s, to, n);
	if (s->state != CONNECTED)
		return fail(s->state == FRESH && s->domain == AF_UNIX ? EINVAL : ENOTCONN);
	if (s->deaf || length(to, n) == 0)
		return 0;
	if (!until(s, POLLIN))
		return -1;
	pthread_mutex_lock(s->lock);
	uint64_t left = s->gone ? s->left - s->received : s->peer->shut ? s->peer->sent - s->received : UINT64_MAX;
	long r = 0, total = 0;
	for (int i = 0; i < n && left > 0; i++) {  // Nanos's readv and writev miscount
		size_t want = to[i].iov_len < left ? to[i].iov_len : (size_t)left;
		r = call(SYS_read, s->fd, to[i].iov_base, want);
		if (r <= 0)
			break;
		total += r;
		left -= (uint64_t)r;
		if ((size_t)r < to[i].iov_len)
			break;
	}
	if (total > 0) {
		r = total;
		s->received += (uint64_t)total;
		if (s->peer) {
			mark(s->peer);
			wake(s->peer);
		}
	} else if (r == 0 && s->reset) {
		s->reset = false;
		r = -ECONNRESET;
	}
	pthread_mutex_unlock(s->lock);
	return result(r);
}

static ssize_t broken(void)
{
	raise(SIGPIPE);
	return fail(EPIPE);
}

ssize_t socket_write(struct socket *s, const struct iovec *from, int n)
{
	if (s->state == OUTSIDE) {
		if (s->cut == CUT_TOLD)
			return broken();
		if (s->cut == CUT) {
			s->cut = CUT_TOLD;
			return fail(ECONNRESET);
		}
		int fd = s->fd;
		long r = s->late ? -EPIPE : gather(fd, from, n);
		if (shut_meanwhile(r) && cut_meanwhile(s, fd))
			return fail(ECONNRESET);
		int error = r == -EPIPE ? outside_error(s) : 0;
		return error ? fail(error) : result(r);
	}
	if (s->state != CONNECTED)
		return fail(s->domain == AF_UNIX ? ENOTCONN : EPIPE);
	if (length(from, n) == 0)
		return 0;
	if (!until(s, POLLOUT))
		return -1;
	long r;
	pthread_mutex_lock(s->lock);
	if (s->reset) {
		s->reset = false;
		s->swallowed = true;
		r = -ECONNRESET;
	} else if (s->shut || (s->gone && (s->swallowed || s->domain == AF_UNIX))) {
		r = -EPIPE;
	} else if (s->gone) {  // as on Linux, the first write after the peer's end succeeds
		s->swallowed = true;
		r = (long)length(from, n);
	} else {
		long total = 0;
		r = 0;
		for (int i = 0; i < n && r == (i ? (long)from[i - 1].iov_len : 0); i++)
			if ((r = call(SYS_write, s->fd, from[i].iov_base, from[i].iov_len)) > 0)
				total += r;
		if (total > 0) {
			r = total;
			s->sent += (uint64_t)total;
			wake(s->peer);
		}
	}
	pthread_mutex_unlock(s->lock);
	return r == -EPIPE ? broken() : result(r);
}

int shutdown(int fd, int how)
{
	struct socket *s = of(fd);
	if (s == NULL)
		return (int)result(call(SYS_shutdown, fd, how));
	if (s->state == OUTSIDE)
		return shutdown_outside(s, how);
	if (s->state == LISTENING)
		return 0;
	if (s->state != CONNECTED)
		return fail(ENOTCONN);
	pthread_mutex_lock(s->lock);
	if (how != SHUT_WR)
		s->deaf = true;
	if (how != SHUT_RD && !s->shut) {
		s->shut = true;
		mark(s);
		wake(s->peer);
	}
	pthread_mutex_unlock(s->lock);
	return 0;
}

// leave closes one end of a connection. The peer reads the sent data and then the end, or a reset.
static void leave(struct socket *s)
{
	pthread_mutex_lock(s->lock);
	struct socket *o = s->peer;
	if (o) {
		bool unread = o->sent > s->received;
		o->gone = true;
		o->left = s->sent;
		o->reset = s->domain != AF_UNIX && (s->lingers_not || unread);
		o->peer = NULL;
	}
	s->peer = NULL;
	call(SYS_close, s->fd);
	wake(o);
	bool last = --*s->ends == 0;
	pthread_mutex_unlock(s->lock);
	if (last) {
		pthread_mutex_destroy(s->lock);
		free(s->lock);
		free(s->ends);
	}
}

int socket_close(int fd, struct socket *s)
{
	if (__atomic_sub_fetch(&s->copies, 1, __ATOMIC_SEQ_CST) > 0) {
		if (s->fd == fd)  // the socket continues with another descriptor
			for (int i = 0; i < MAX_FD; i++)
				if (descriptors[i].socket == s) {
					s->fd = i;
					break;
				}
		return (int)result(call(SYS_close, fd));
	}
	pthread_mutex_lock(&all_lock);
	delist(s);
	pthread_mutex_unlock(&all_lock);
	long r = 0;
	if (s->state == CONNECTED)
		leave(s);
	else
		r = call(SYS_close, fd);
	if (s->state == LISTENING) {
		call(SYS_close, s->waker);
		if (s->node >= 0)
			call(SYS_close, s->node);
		for (; s->waiting > 0; s->waiting--) {
			struct socket *o = s->first;
			s->first = o->next;
			o->lingers_not = true;
			leave(o);
			free(o);
		}
	}
	free(s);
	return (int)result(r);
}

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	long r = call(SYS_epoll_ctl, epoll, op, fd, event);
	struct socket *s = of(fd);
	if (s && r == 0) {
		if (s->lock)
			pthread_mutex_lock(s->lock);
		s->epoll = op == EPOLL_CTL_DEL ? -1 : epoll;
		if (op != EPOLL_CTL_DEL)
			s->event = *event;
		s->waits = pthread_self();
		if (s->lock)
			pthread_mutex_unlock(s->lock);
	}
	return (int)result(r);
}

// Messages --------------------------------------------------------------------

ssize_t send(int fd, const void *from, size_t n, int flags) { return sendto(fd, from, n, flags, NULL, 0); }
ssize_t recv(int fd, void *to, size_t n, int flags) { return recvfrom(fd, to, n, flags, NULL, NULL); }

static bool too_long(int fd, size_t n)
{
	struct descriptor *d = descriptor(fd);
	if (d == NULL || !d->datagram || n <= MAX_DATAGRAM)
		return false;
	if (n <= LINUX_DATAGRAM)
		nanos_lacks("datagrams of this length");
	return true;
}

ssize_t sendto(int fd, const void *from, size_t n, int flags, const struct sockaddr *to, socklen_t len)
{
	struct socket *s = of(fd);
	struct iovec v = {(void *)from, n};
	if (s && (s->state != OUTSIDE || s->cut))
		return socket_write(s, &v, 1);
	if (too_long(fd, n))
		return fail(EMSGSIZE);
	long r = call(SYS_sendto, fd, from, n, flags, to, len);
	return s && shut_meanwhile(r) && cut_meanwhile(s, fd) ? fail(ECONNRESET) : result(r);
}

ssize_t recvfrom(int fd, void *to, size_t n, int flags, struct sockaddr *from, socklen_t *len)
{
	struct socket *s = of(fd);
	struct iovec v = {to, n};
	if (s && (s->state != OUTSIDE || s->cut))
		return socket_read(s, &v, 1);
	long r = call(SYS_recvfrom, fd, to, n, flags, from, len);
	return s && r == 0 && n > 0 && cut_meanwhile(s, fd) ? fail(ECONNRESET) : result(r);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct socket *s = of(fd);
	if (s)
		return socket_write(s, m->msg_iov, (int)m->msg_iovlen);
	return too_long(fd, length(m->msg_iov, (int)m->msg_iovlen)) ? fail(EMSGSIZE) : result(call(SYS_sendmsg, fd, m, flags));
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	struct socket *s = of(fd);
	if (s == NULL)
		return result(call(SYS_recvmsg, fd, m, flags));
	m->msg_controllen = 0;
	m->msg_flags = 0;
	m->msg_namelen = 0;
	return socket_read(s, m->msg_iov, (int)m->msg_iovlen);
}

int sendmmsg(int fd, struct mmsghdr *m, unsigned n, int flags)
{
	unsigned fit = 0;
	while (fit < n && !too_long(fd, length(m[fit].msg_hdr.msg_iov, (int)m[fit].msg_hdr.msg_iovlen)))
		fit++;
	if (fit == 0 && n > 0)
		return fail(EMSGSIZE);
	return (int)result(call(SYS_sendmmsg, fd, m, fit, flags));
}
