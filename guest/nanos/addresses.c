// Addresses of the streams in this machine: their kinds, and the sockets that have them.
#define _GNU_SOURCE
#include "sockets.h"
#include "../contract/contract.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/random.h>

struct socket *all; // streams that have an address
pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

void enlist(struct socket *s)
{
	s->next = all;
	all = s;
}

void delist(struct socket *s)
{
	for (struct socket **p = &all; *p; p = &(*p)->next)
		if (*p == s) {
			*p = s->next;
			return;
		}
}

// plain converts an IPv4 address in IPv6's form to an IPv4 address.
struct address plain(const struct address *a)
{
	struct address to = *a;
	if (a->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr)) {
		to = (struct address){.in = {.sin_family = AF_INET, .sin_port = a->in6.sin6_port}, .len = sizeof to.in};
		memcpy(&to.in.sin_addr, &a->in6.sin6_addr.s6_addr[12], 4);
	}
	return to;
}

uint16_t port_of(const struct address *a) { return ntohs(a->any.sa_family == AF_INET6 ? a->in6.sin6_port : a->in.sin_port); }

void set_port(struct address *a, uint16_t port)
{
	if (a->any.sa_family == AF_INET6)
		a->in6.sin6_port = htons(port);
	else
		a->in.sin_port = htons(port);
}

bool is_any(const struct address *a)
{
	return a->any.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr) : a->in.sin_addr.s_addr == INADDR_ANY;
}

// is_here tests whether an address belongs to this machine.
bool is_here(const struct address *a)
{
	struct address p = plain(a);
	if (is_any(&p))
		return true;
	if (p.any.sa_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(&p.in6.sin6_addr);
	return ntohl(p.in.sin_addr.s_addr) >> 24 == 127 || p.in.sin_addr.s_addr == inet_addr(GUEST_IP);
}

// takes tests whether s, if it listens, receives connections to a.
bool takes(const struct socket *s, const struct address *a)
{
	struct address to = plain(a), at = plain(&s->local);
	if (port_of(&at) != port_of(&to))
		return false;
	if (is_any(&at))
		return at.any.sa_family == to.any.sa_family || (at.any.sa_family == AF_INET6 && !s->only6);
	if (at.any.sa_family != to.any.sa_family)
		return is_any(&to) && to.any.sa_family == AF_INET6;
	if (is_any(&to))  // a connection to the unspecified address goes to the loopback
		return at.any.sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&at.in6.sin6_addr) : at.in.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
	if (at.any.sa_family == AF_INET6)
		return IN6_ARE_ADDR_EQUAL(&at.in6.sin6_addr, &to.in6.sin6_addr);
	return at.in.sin_addr.s_addr == to.in.sin_addr.s_addr;
}

// overlap tests whether two sockets' addresses conflict.
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

// free_for tests whether s may have its address. The caller holds all_lock.
bool free_for(const struct socket *s, bool to_listen)
{
	for (struct socket *o = all; o; o = o->next)
		if (o != s && o->bound && o->state != CONNECTED && overlap(o, s) && !(o->shares && s->shares) &&
		    (o->state == LISTENING || !to_listen))
			return false;
	return true;
}

// any_port gives s a free port. The caller holds all_lock.
bool any_port(struct socket *s)
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

bool take(struct address *a, const struct sockaddr *from, socklen_t len)
{
	if (from == NULL || len > sizeof a->un || len < sizeof from->sa_family)
		return false;
	memset(a, 0, sizeof *a);
	memcpy(&a->any, from, len);
	a->len = len;
	return true;
}

int give(const struct address *a, struct sockaddr *to, socklen_t *len)
{
	if (to == NULL || len == NULL)
		return fail(EFAULT);
	memcpy(to, &a->any, *len < a->len ? *len : a->len);
	*len = a->len;
	return 0;
}

