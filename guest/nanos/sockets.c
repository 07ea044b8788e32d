// Streams between sockets of this machine: TCP on the loopback and Unix sockets. There
// is one process, so both ends are here, and what Nanos's own get wrong (writes that
// stall, ends and resets that are lost, ports that two listen on) is kept right beside a
// pair of the kernel's sockets that carries the bytes. A connection to the outside is
// the kernel's own, mended where it is read.
#define _GNU_SOURCE
#include "calls.h"
#include "nanos.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
	MAX_PENDING = 4096,     // connections that nobody has accepted; Linux's somaxconn
	MAX_DATAGRAM = 65461,   // bytes of a UDP datagram that the loopback carries
	LINUX_DATAGRAM = 65507, // and that Linux takes: what IPv4's length leaves
	BUFFER = 212992,        // what SO_SNDBUF and SO_RCVBUF say, Linux's default
	FIRST_PORT = 32768,     // of those that are given to who asks for none
	PORTS = 28232,
};

struct address {
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct sockaddr_un un;
	};
	socklen_t len; // 0: none
};

enum state {
	FRESH,     // no kernel's address, and no peer
	LISTENING, // its descriptor is readable when there are connections to take
	CONNECTED, // to another one here
	OUTSIDE,   // the kernel's own TCP
};

struct socket {
	int domain, fd, copies; // copies: descriptors that it has
	enum state state;
	struct address local, remote;
	bool bound, only6, shares, nonblocking;
	bool lingers_not;    // SO_LINGER with no time: closing it is a reset
	struct socket *next; // in all, or among those that nobody has accepted

	// LISTENING
	struct socket *first, *last; // that nobody has accepted
	int waiting;
	int waker;     // what is written here makes fd readable
	int node;      // keeps the kernel's socket that the path names; -1
	uint64_t ino;  // of the path

	// CONNECTED: what this end does is told by these, the peer's lock is the same.
	struct socket *peer; // NULL when it is closed
	pthread_mutex_t *lock;
	int *ends; // that use the lock
	uint64_t sent, received;
	bool shut;        // sends no more: the peer reads sent bytes and then the end
	bool marked;      // and a byte that is never given out keeps it readable
	bool deaf;        // shut for reading
	bool gone;        // the peer has closed
	uint64_t left;    // bytes that it had sent; valid when gone or shut
	bool reset;       // by the peer, and not told yet
	bool swallowed;   // something was written after the peer had closed
	bool established; // OUTSIDE
	bool late;        // OUTSIDE: shut, and the kernel is told when the other end has been read
	int epoll;
	struct epoll_event event;
	pthread_t waits; // the thread that asked for events
};

static struct socket *all; // streams that have an address
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static struct socket *of(int fd)
{
	struct descriptor *d = descriptor(fd);
	return d ? d->socket : NULL;
}

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

static void enlist(struct socket *s)
{
	s->next = all;
	all = s;
}

static void delist(struct socket *s)
{
	for (struct socket **p = &all; *p; p = &(*p)->next)
		if (*p == s) {
			*p = s->next;
			return;
		}
}

void socket_keep(struct socket *s) { __atomic_add_fetch(&s->copies, 1, __ATOMIC_SEQ_CST); }

// Addresses -----------------------------------------------------------------

// mapped makes of an IPv4 address in IPv6's form one that is not.
static struct address plain(const struct address *a)
{
	struct address to = *a;
	if (a->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr)) {
		to = (struct address){.in = {.sin_family = AF_INET, .sin_port = a->in6.sin6_port}, .len = sizeof to.in};
		memcpy(&to.in.sin_addr, &a->in6.sin6_addr.s6_addr[12], 4);
	}
	return to;
}

static uint16_t port_of(const struct address *a) { return ntohs(a->any.sa_family == AF_INET6 ? a->in6.sin6_port : a->in.sin_port); }

static void set_port(struct address *a, uint16_t port)
{
	if (a->any.sa_family == AF_INET6)
		a->in6.sin6_port = htons(port);
	else
		a->in.sin_port = htons(port);
}

static bool is_any(const struct address *a)
{
	return a->any.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr) : a->in.sin_addr.s_addr == INADDR_ANY;
}

// is_here says that an address is of this machine.
static bool is_here(const struct address *a)
{
	struct address p = plain(a);
	if (is_any(&p))
		return true;
	if (p.any.sa_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(&p.in6.sin6_addr);
	return ntohl(p.in.sin_addr.s_addr) >> 24 == 127 || p.in.sin_addr.s_addr == inet_addr(GUEST_IP);
}

// takes says that a listener at s gets what comes for a.
static bool takes(const struct socket *s, const struct address *a)
{
	struct address to = plain(a), at = plain(&s->local);
	if (port_of(&at) != port_of(&to))
		return false;
	if (is_any(&at))
		return at.any.sa_family == to.any.sa_family || (at.any.sa_family == AF_INET6 && !s->only6);
	if (at.any.sa_family != to.any.sa_family)
		return is_any(&to) && to.any.sa_family == AF_INET6;
	if (is_any(&to)) // a connection to no address is to the loopback
		return at.any.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&at.in6.sin6_addr) : at.in.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
	if (at.any.sa_family == AF_INET6)
		return IN6_ARE_ADDR_EQUAL(&at.in6.sin6_addr, &to.in6.sin6_addr);
	return at.in.sin_addr.s_addr == to.in.sin_addr.s_addr;
}

// overlap says that two can't have their addresses both.
static bool overlap(const struct socket *a, const struct socket *b)
{
	struct address x = plain(&a->local), y = plain(&b->local);
	if (x.any.sa_family == AF_UNIX || y.any.sa_family == AF_UNIX || port_of(&x) != port_of(&y))
		return false;
	if (x.any.sa_family != y.any.sa_family) {
		const struct socket *six = x.any.sa_family == AF_INET6 ? a : b;
		return is_any(&six->local) && !six->only6;
	}
	if (is_any(&x) || is_any(&y))
		return true;
	return takes(a, &y);
}

// free_for says that nobody keeps s from having its address. all is locked.
static bool free_for(const struct socket *s, bool to_listen)
{
	for (struct socket *o = all; o; o = o->next)
		if (o != s && o->bound && o->state != CONNECTED && overlap(o, s) && !(o->shares && s->shares) &&
		    (o->state == LISTENING || !to_listen))
			return false;
	return true;
}

// any_port gives s a port that nobody has. all is locked.
static bool any_port(struct socket *s)
{
	uint16_t random;
	for (int tries = 0; tries < 256 && getrandom(&random, sizeof random, 0) == sizeof random; tries++) {
		bool taken = false;
		set_port(&s->local, (uint16_t)(FIRST_PORT + random % PORTS));
		for (struct socket *o = all; o && !taken; o = o->next)
			taken = o != s && o->local.len && o->local.any.sa_family != AF_UNIX && port_of(&o->local) == port_of(&s->local);
		if (!taken)
			return true;
	}
	return false;
}

static bool take(struct address *a, const struct sockaddr *from, socklen_t len)
{
	if (from == NULL || len > sizeof a->un || len < sizeof from->sa_family)
		return false;
	memset(a, 0, sizeof *a);
	memcpy(&a->any, from, len);
	a->len = len;
	return true;
}

static int give(const struct address *a, struct sockaddr *to, socklen_t *len)
{
	if (to == NULL || len == NULL)
		return fail(EFAULT);
	memcpy(to, &a->any, *len < a->len ? *len : a->len);
	*len = a->len;
	return 0;
}

// The calls before there is a connection ---------------------------------------

int socket(int domain, int type, int protocol)
{
	long fd = call(SYS_socket, domain, type, protocol);
	struct descriptor *d = descriptor((int)fd);
	if (d == NULL || own_thread)
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

// exchange puts the first of a new pair of the kernel's sockets in the place of fd.
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

// listener finds who listens at an address; errno where nobody does. all is locked.
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

// pair_up makes s and a new socket, which l is to accept, the ends of a connection. all
// is locked.
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
	if (l->domain != AF_UNIX) { // each end names the address that was asked for, in its own form
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

// to_gateway points a connection to a port of the host's loopback at the gateway.
static bool to_gateway(const struct address *a, struct sockaddr_in *to)
{
	struct address p = plain(a);
	if (p.any.sa_family != AF_INET || ntohl(p.in.sin_addr.s_addr) >> 24 != 127 || !nanos_relayed(port_of(&p)))
		return false;
	*to = p.in;
	to->sin_addr.s_addr = inet_addr(GATEWAY_IP);
	return true;
}

// random_port binds an IPv4 socket of the kernel to a port: to a random one where it is 0,
// because the kernel counts them up, and the clones of one template would all have the same.
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

// connect_outside has the kernel connect.
static int connect_outside(struct socket *s, const struct sockaddr *to, socklen_t len)
{
	static const int one = 1;
	if (to->sa_family == AF_INET)
		random_port(s->fd, s->bound ? port_of(&s->local) : 0);
	call(SYS_setsockopt, s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	s->state = OUTSIDE;
	return (int)result(call(SYS_connect, s->fd, to, len));
}

// connect_datagram has the kernel remember where the datagrams of a socket go.
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
	if (s == NULL)
		return (int)result(call(SYS_accept4, fd, from, len, flags));
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

// The calls on a connection -----------------------------------------------------

// wake has the thread that waits for events of s look again: Nanos looks at a socket when
// a wait begins, and tells of little that the other end does later. The lock is held.
static void wake(struct socket *s)
{
	if (s && s->epoll >= 0 && !pthread_equal(s->waits, pthread_self()))
		call(SYS_epoll_ctl, s->epoll, EPOLL_CTL_MOD, s->fd, &s->event);
}

// mark makes the reader of an end that sends no more see that there is something to
// read: the end. The lock is held.
static void mark(struct socket *s)
{
	if (s->shut && !s->marked && s->peer && call(SYS_write, s->fd, "", 1) == 1)
		s->marked = true;
}

// until waits for a blocking socket to be ready: no call may block with the lock held.
static void until(struct socket *s, short events)
{
	if (s->nonblocking)
		return;
	if (call(SYS_fcntl, s->fd, F_GETFL) & O_NONBLOCK) {
		s->nonblocking = true;
		return;
	}
	struct pollfd p = {s->fd, events, 0};
	while (poll(&p, 1, 10) == 0)
		;
}

static size_t length(const struct iovec *v, int n)
{
	size_t total = 0;
	for (int i = 0; i < n; i++)
		total += v[i].iov_len;
	return total;
}

// outside_error is what the kernel knows of a connection that it calls ended. Where both
// ends have come it says that there is none.
static int outside_error(struct socket *s)
{
	int error = 0;
	socklen_t len = sizeof error;
	return call(SYS_getsockopt, s->fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error != ENOTCONN ? error : 0;
}

// outside_state is a connection's state (TCP_CLOSE_WAIT), -1 if the kernel does not say.
static int outside_state(struct socket *s)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof info;
	return call(SYS_getsockopt, s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 ? info.tcpi_state : -1;
}

// read_outside: after its own end the kernel says that the other one has come too, and
// never that a connection was reset.
static ssize_t read_outside(struct socket *s, const struct iovec *to, int n)
{
	long r = scatter(s->fd, to, n);
	if (r != 0 || length(to, n) == 0)
		return result(r);
	int error = outside_error(s), state = s->shut && !error ? outside_state(s) : -1;
	if (error)
		return fail(error);
	if (state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2) {
		struct timespec little = {.tv_nsec = 1000000}; // it calls itself readable all the while
		nanosleep(&little, NULL);
		return fail(EAGAIN);
	}
	if (s->late)
		call(SYS_shutdown, s->fd, SHUT_WR);
	s->late = false;
	return 0;
}

// shutdown_outside: when both ends have come the kernel throws away what has not been read.
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
	until(s, POLLIN);
	pthread_mutex_lock(s->lock);
	uint64_t left = s->gone ? s->left - s->received : s->peer->shut ? s->peer->sent - s->received : UINT64_MAX;
	long r = 0, total = 0;
	for (int i = 0; i < n && left > 0; i++) { // the kernel's own readv and writev miscount
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
		long r = s->late ? -EPIPE : gather(s->fd, from, n);
		int error = r == -EPIPE ? outside_error(s) : 0;
		return error ? fail(error) : result(r);
	}
	if (s->state != CONNECTED)
		return fail(s->domain == AF_UNIX ? ENOTCONN : EPIPE);
	if (length(from, n) == 0)
		return 0;
	until(s, POLLOUT);
	long r;
	pthread_mutex_lock(s->lock);
	if (s->reset) {
		s->reset = false;
		s->swallowed = true;
		r = -ECONNRESET;
	} else if (s->shut || (s->gone && (s->swallowed || s->domain == AF_UNIX))) {
		r = -EPIPE;
	} else if (s->gone) { // the answer to the first bytes would be the reset
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

// leave is an end's part in the closing of a connection: its peer reads what was sent
// and then the end, or that it was reset.
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
		if (s->fd == fd) // its work goes on by another descriptor
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
		// A refused connection comes as a reset one; libuv asks for it only then.
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
	if (s && s->state != OUTSIDE)
		return socket_write(s, &v, 1);
	return too_long(fd, n) ? fail(EMSGSIZE) : result(call(SYS_sendto, fd, from, n, flags, to, len));
}

ssize_t recvfrom(int fd, void *to, size_t n, int flags, struct sockaddr *from, socklen_t *len)
{
	struct socket *s = of(fd);
	struct iovec v = {to, n};
	return s && s->state != OUTSIDE ? socket_read(s, &v, 1) : result(call(SYS_recvfrom, fd, to, n, flags, from, len));
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
