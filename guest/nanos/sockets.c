// Streams between sockets of this machine: TCP on the loopback and Unix sockets. There is one
// process, so both ends are here. A pair of the kernel's sockets carries the bytes. This code
// corrects the errors of Nanos's own streams: writes that stall, lost ends and resets, and two
// listeners on one port. For a connection to the outside, the kernel's TCP is used, and reads correct
// its errors.
//
// This file has the calls before there is a connection, and the calls for names and options.
#define _GNU_SOURCE
#include "nanos.h"
#include "sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

enum {
	MAX_PENDING = 4096,  // connections that nobody has accepted; Linux's somaxconn
	BUFFER = 212992,  // reported for SO_SNDBUF and SO_RCVBUF, Linux's default
};

static struct socket *new_socket(int domain, int fd, bool nonblocking)
{
	struct socket *s = calloc(1, sizeof *s);
	if (s == NULL)
		return NULL;
	s->domain = domain;
	s->fd = fd;
	s->copies = 1;
	s->nonblocking = nonblocking;
	s->waker = s->node = s->epoll = -1;
	return s;
}

int socket(int domain, int type, int protocol)
{
	long fd = call(SYS_socket, domain, type, protocol);
	struct descriptor *d = descriptor((int)fd);
	if (own_thread && fd >= 0)
		return out_of_the_way((int)fd);
	if (d == NULL)
		return (int)result(fd);
	*d = (struct descriptor){0};
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (domain != AF_INET && domain != AF_INET6 && domain != AF_UNIX)
		return (int)fd;
	d->datagram = kind == SOCK_DGRAM && domain != AF_UNIX;
	if (kind == SOCK_STREAM)
		d->socket = new_socket(domain, (int)fd, type & SOCK_NONBLOCK);
	return (int)fd;
}

int bind(int fd, const struct sockaddr *at, socklen_t len)
{
	struct socket *s = of(fd);
	struct address a;
	if (s == NULL || !take(&a, at, len) || a.any.sa_family != s->domain)
		return (int)result(call(SYS_bind, fd, at, len));
	if (s->state != FRESH || s->bound)
		return fail(EINVAL);
	if (s->domain == AF_UNIX) {
		bool abstract = len > sizeof(sa_family_t) && a.un.sun_path[0] == 0;
		struct stat st;
		long r = abstract ? 0 : call(SYS_bind, fd, at, len);
		if (r < 0)
			return (int)result(r);
		if (!abstract && call(SYS_newfstatat, AT_FDCWD, a.un.sun_path, &st, 0) == 0)
			s->ino = st.st_ino;
		s->local = a;
		s->bound = true;
		pthread_mutex_lock(&all_lock);
		for (struct socket *o = all; o && abstract; o = o->next)
			if (o->local.len == a.len && memcmp(&o->local.un, &a.un, a.len) == 0)
				s->bound = false;
		if (s->bound)
			enlist(s);
		pthread_mutex_unlock(&all_lock);
		return s->bound ? 0 : fail(EADDRINUSE);
	}
	if (len < (s->domain == AF_INET ? sizeof a.in : sizeof a.in6))
		return fail(EINVAL);
	if (!is_here(&a))
		return fail(EADDRNOTAVAIL);
	pthread_mutex_lock(&all_lock);
	s->local = a;
	int error = port_of(&a) == 0 ? (any_port(s) ? 0 : EADDRINUSE) : free_for(s, true) ? 0 : EADDRINUSE;
	if (error == 0) {
		s->bound = true;
		enlist(s);
	} else {
		s->local.len = 0;
	}
	pthread_mutex_unlock(&all_lock);
	return error ? fail(error) : 0;
}

// exchange replaces fd with the first of a new pair of the kernel's sockets.
static int exchange(int fd, bool nonblocking, int *other)
{
	int pair[2];
	long r = call(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0), 0, pair);
	if (r == 0 && fd >= 0) {
		r = call(SYS_dup3, pair[0], fd, 0);
		call(SYS_close, pair[0]);
		if (r < 0)
			call(SYS_close, pair[1]);
	}
	*other = pair[1];
	return r < 0 ? (int)r : fd >= 0 ? fd : pair[0];
}

int listen(int fd, int backlog)
{
	struct socket *s = of(fd);
	if (s == NULL)
		return (int)result(call(SYS_listen, fd, backlog));
	if (s->state == LISTENING)
		return 0;
	if (s->state != FRESH || (s->domain == AF_UNIX && !s->bound))
		return fail(EINVAL);
	pthread_mutex_lock(&all_lock);
	int error = 0;
	if (!s->bound) {
		s->local = s->domain == AF_INET ? (struct address){.in = {.sin_family = AF_INET}, .len = sizeof s->local.in}
						: (struct address){.in6 = {.sin6_family = AF_INET6}, .len = sizeof s->local.in6};
		error = any_port(s) ? 0 : EADDRINUSE;
		s->bound = error == 0;
		if (s->bound)
			enlist(s);
	}
	if (error == 0 && s->domain != AF_UNIX && !free_for(s, true))
		error = EADDRINUSE;
	if (error == 0 && s->domain == AF_UNIX && s->ino)
		s->node = (int)call(SYS_dup, fd);
	if (error == 0) {
		long r = exchange(fd, true, &s->waker);
		error = r < 0 ? (int)-r : 0;
	}
	if (error == 0)
		s->state = LISTENING;
	pthread_mutex_unlock(&all_lock);
	return error ? fail(error) : 0;
}

// listener returns the listener at an address. If there is none it returns NULL, and sets *error to an
// errno. The caller holds all_lock.
static struct socket *listener(const struct socket *s, const struct address *a, int *error)
{
	struct stat st = {0};
	*error = ECONNREFUSED;
	if (s->domain == AF_UNIX && a->un.sun_path[0] != 0) {
		char path[sizeof a->un.sun_path + 1] = {0};
		memcpy(path, a->un.sun_path, a->len - offsetof(struct sockaddr_un, sun_path));
		long r = call(SYS_newfstatat, AT_FDCWD, path, &st, 0);
		if (r < 0) {
			*error = (int)-r;
			return NULL;
		}
	}
	for (struct socket *o = all; o; o = o->next) {
		if (o->state != LISTENING || (o->domain == AF_UNIX) != (s->domain == AF_UNIX))
			continue;
		if (s->domain != AF_UNIX ? takes(o, a)
					 : st.st_ino ? o->ino == st.st_ino : o->local.len == a->len && memcmp(&o->local.un, &a->un, a->len) == 0)
			return o;
	}
	return NULL;
}

// pair_up makes s and a new socket the ends of a connection. A later accept of l returns the new
// socket. The caller holds all_lock.
static int pair_up(struct socket *s, struct socket *l, const struct address *to)
{
	struct socket *o = new_socket(l->domain, -1, true);
	pthread_mutex_t *lock = malloc(sizeof *lock);
	int *ends = malloc(sizeof *ends);
	long r = -ENOMEM;
	if (l->waiting == MAX_PENDING)
		r = -ECONNREFUSED;
	else if (o && lock && ends)
		r = exchange(s->fd, s->nonblocking, &o->fd);
	if (r < 0) {
		free(o);
		free(lock);
		free(ends);
		return (int)-r;
	}
	call(SYS_fcntl, o->fd, F_SETFL, O_NONBLOCK);
	pthread_mutex_init(lock, NULL);
	*ends = 2;
	s->lock = o->lock = lock;
	s->ends = o->ends = ends;
	s->peer = o;
	o->peer = s;
	s->state = o->state = CONNECTED;
	s->remote = *to;
	o->local = l->local;
	if (l->domain != AF_UNIX) {  // each end has the requested address, in the form of its address family
		struct address at = plain(to);
		if (is_any(&at)) {
			if (at.any.sa_family == AF_INET6)
				at.in6.sin6_addr = in6addr_loopback;
			else
				at.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		}
		struct address from = at;
		if (s->bound && !is_any(&s->local))
			from = plain(&s->local);
		set_port(&from, port_of(&s->local));
		struct address *forms[] = {&from, &at};
		struct socket *sockets[] = {s, o};
		for (int i = 0; i < 2; i++)
			for (int end = 0; end < 2; end++) {
				struct address a = *forms[i];
				if (sockets[end]->domain == AF_INET6 && a.any.sa_family == AF_INET) {
					struct address six = {.in6 = {.sin6_family = AF_INET6, .sin6_port = a.in.sin_port}, .len = sizeof six.in6};
					six.in6.sin6_addr.s6_addr[10] = six.in6.sin6_addr.s6_addr[11] = 0xff;
					memcpy(&six.in6.sin6_addr.s6_addr[12], &a.in.sin_addr, 4);
					a = six;
				}
				*((i == end) ? &sockets[end]->local : &sockets[end]->remote) = a;
			}
	} else {
		o->remote = s->bound ? s->local : (struct address){.any = {.sa_family = AF_UNIX}, .len = sizeof(sa_family_t)};
	}
	if (l->waiting++ == 0)
		l->first = o;
	else
		l->last->next = o;
	l->last = o;
	if (l->waiting == 1)
		call(SYS_write, l->waker, "", 1);
	return 0;
}

// to_gateway redirects a connection to a port of the host's loopback to the gateway.
static bool to_gateway(const struct address *a, struct sockaddr_in *to)
{
	struct address p = plain(a);
	if (p.any.sa_family != AF_INET || ntohl(p.in.sin_addr.s_addr) >> 24 != 127 || !nanos_relayed(port_of(&p)))
		return false;
	*to = p.in;
	to->sin_addr.s_addr = inet_addr(GATEWAY_IP);
	return true;
}

// random_port binds an IPv4 socket of the kernel to a port. For port 0 it chooses a random port,
// because the kernel counts up, and all clones of a template would get the same port.
static void random_port(int fd, uint16_t port)
{
	struct sockaddr_in me = {.sin_family = AF_INET, .sin_port = htons(port)};
	uint16_t random;
	for (int tries = 0; tries < 8 && getrandom(&random, sizeof random, 0) == sizeof random; tries++) {
		if (port == 0)
			me.sin_port = htons((uint16_t)(FIRST_PORT + random % PORTS));
		if (call(SYS_bind, fd, &me, sizeof me) == 0)
			return;
	}
}

// connect_outside makes the kernel connect.
static int connect_outside(struct socket *s, const struct sockaddr *to, socklen_t len)
{
	static const int one = 1;
	if (to->sa_family == AF_INET)
		random_port(s->fd, s->bound ? port_of(&s->local) : 0);
	call(SYS_setsockopt, s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	s->state = OUTSIDE;
	return (int)result(call(SYS_connect, s->fd, to, len));
}

// connect_datagram makes the kernel remember the destination of a socket's datagrams.
static int connect_datagram(int fd, const struct sockaddr *to, socklen_t len)
{
	struct sockaddr_in me = {0};
	socklen_t size = sizeof me;
	if (to && len >= sizeof me && to->sa_family == AF_INET && call(SYS_getsockname, fd, &me, &size) == 0 && me.sin_port == 0)
		random_port(fd, 0);
	return (int)result(call(SYS_connect, fd, to, len));
}

int connect(int fd, const struct sockaddr *to, socklen_t len)
{
	struct descriptor *d = descriptor(fd);
	struct socket *s = of(fd);
	struct address a;
	struct sockaddr_in gateway;
	if (d && d->datagram)
		return connect_datagram(fd, to, len);
	if (s == NULL || !take(&a, to, len))
		return (int)result(call(SYS_connect, fd, to, len));
	if (s->state == CONNECTED)
		return fail(EISCONN);
	if (s->state == LISTENING)
		return fail(EINVAL);
	if (s->state == OUTSIDE)
		return (int)result(call(SYS_connect, fd, to, len));
	if (a.any.sa_family != s->domain)
		return fail(EAFNOSUPPORT);
	if (len < (s->domain == AF_INET ? sizeof a.in : s->domain == AF_INET6 ? sizeof a.in6 : offsetof(struct sockaddr_un, sun_path) + 1))
		return fail(EINVAL);
	if (s->domain != AF_UNIX && !is_here(&a))
		return connect_outside(s, to, len);
	pthread_mutex_lock(&all_lock);
	int error;
	struct socket *l = listener(s, &a, &error);
	if (l == NULL && s->domain == AF_INET && to_gateway(&a, &gateway)) {
		pthread_mutex_unlock(&all_lock);
		return connect_outside(s, (struct sockaddr *)&gateway, sizeof gateway);
	}
	if (l && s->domain != AF_UNIX && !s->bound) {
		s->local = a;
		error = any_port(s) ? 0 : EADDRNOTAVAIL;
	} else if (l) {
		error = 0;
	}
	if (l && error == 0 && (error = pair_up(s, l, &a)) == 0 && !s->bound)
		enlist(s);
	pthread_mutex_unlock(&all_lock);
	return error ? fail(error) : 0;
}

int accept4(int fd, struct sockaddr *from, socklen_t *len, int flags)
{
	struct socket *s = of(fd);
	if (s == NULL) {
		long taken = call(SYS_accept4, fd, from, len, flags);
		return own_thread && taken >= 0 ? out_of_the_way((int)taken) : (int)result(taken);
	}
	if (s->state != LISTENING)
		return fail(EINVAL);
	for (;;) {
		char c;
		pthread_mutex_lock(&all_lock);
		struct socket *o = s->waiting ? s->first : NULL;
		if (o) {
			s->first = o->next;
			if (--s->waiting == 0)
				call(SYS_read, fd, &c, 1);
			enlist(o);
		}
		pthread_mutex_unlock(&all_lock);
		if (o) {
			struct descriptor *d = descriptor(o->fd);
			o->nonblocking = flags & SOCK_NONBLOCK;
			call(SYS_fcntl, o->fd, F_SETFL, flags & SOCK_NONBLOCK ? O_NONBLOCK : 0);
			if (d)
				*d = (struct descriptor){.socket = o};
			if (from)
				give(&o->remote, from, len);
			return o->fd;
		}
		if (s->nonblocking)
			return fail(EAGAIN);
		struct pollfd p = {fd, POLLIN, 0};
		poll(&p, 1, -1);
	}
}

int accept(int fd, struct sockaddr *from, socklen_t *len) { return accept4(fd, from, len, 0); }

// Names and options -----------------------------------------------------------

int getsockname(int fd, struct sockaddr *to, socklen_t *len)
{
	struct socket *s = of(fd);
	if (s == NULL || s->state == OUTSIDE)
		return (int)result(call(SYS_getsockname, fd, to, len));
	struct address none = {.any = {.sa_family = (sa_family_t)s->domain},
		.len = s->domain == AF_UNIX ? sizeof(sa_family_t) : s->domain == AF_INET ? sizeof none.in : sizeof none.in6};
	return give(s->local.len ? &s->local : &none, to, len);
}

int getpeername(int fd, struct sockaddr *to, socklen_t *len)
{
	struct socket *s = of(fd);
	if (s == NULL || s->state == OUTSIDE)
		return (int)result(call(SYS_getpeername, fd, to, len));
	return s->state == CONNECTED && !(s->gone && s->shut) ? give(&s->remote, to, len) : fail(ENOTCONN);
}

static int option(int value, void *to, socklen_t *len)
{
	if (to == NULL || len == NULL || *len < sizeof value)
		return fail(EINVAL);
	memcpy(to, &value, sizeof value);
	*len = sizeof value;
	return 0;
}

int getsockopt(int fd, int level, int name, void *to, socklen_t *len)
{
	struct socket *s = of(fd);
	if (s && s->cut == CUT && level == SOL_SOCKET && name == SO_ERROR) {
		s->cut = CUT_TOLD;
		return option(ECONNRESET, to, len);
	}
	if (s && (s->state != OUTSIDE || name != SO_ERROR) && level == SOL_SOCKET)
		switch (name) {
		case SO_ERROR:
			return option(0, to, len);
		case SO_TYPE:
			return option(SOCK_STREAM, to, len);
		case SO_DOMAIN:
			return option(s->domain, to, len);
		case SO_ACCEPTCONN:
			return option(s->state == LISTENING, to, len);
		case SO_SNDBUF:
		case SO_RCVBUF:
			return option(BUFFER, to, len);
		}
	if (s && (s->state == LISTENING || s->state == CONNECTED))
		return option(0, to, len);
	long r = call(SYS_getsockopt, fd, level, name, to, len);
	if (s && r == 0 && level == SOL_SOCKET && name == SO_ERROR) {
		// Nanos reports a refused connection as reset. libuv asks for the error only then.
		if (!s->established && *(int *)to == ECONNRESET)
			*(int *)to = ECONNREFUSED;
		s->established = *(int *)to == 0;
	}
	return (int)result(r);
}

int setsockopt(int fd, int level, int name, const void *from, socklen_t len)
{
	struct socket *s = of(fd);
	int value = 0;
	if (s == NULL)
		return (int)result(call(SYS_setsockopt, fd, level, name, from, len));
	if (from && len >= sizeof value)
		memcpy(&value, from, sizeof value);
	if (level == SOL_SOCKET && name == SO_LINGER && len >= sizeof(struct linger)) {
		const struct linger *l = from;
		s->lingers_not = l->l_onoff && l->l_linger == 0;
		return 0;
	}
	if (level == SOL_SOCKET && name == SO_REUSEPORT)
		s->shares = value;
	else if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY)
		s->only6 = value;
	else if (s->state == OUTSIDE)
		return (int)result(call(SYS_setsockopt, fd, level, name, from, len));
	return 0;
}

