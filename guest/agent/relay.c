// Relays connections from some ports of the guest's loopback to the same ports of the gateway, which
// lead to the host's loopback. On linux the relay is a separate process beside the code. Nanos needs
// no relay. The gateway decides what is allowed.
#define _GNU_SOURCE
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	MAX_PAIRS = 128,    // connections at once; the gateway's own limit
	BUFFER = 32 << 10,  // bytes in transit, each way
};

// half is one direction of a connection.
struct half {
	uint8_t *buf;
	size_t off, len;
	int ended;   // the source has sent its end
	int closed;  // the destination has got that end
};

struct pair {
	int fd[2];  // the code's side and the gateway's; -1 when the pair is free
	int connecting;
	struct half half[2];  // half[i]: from fd[i] to fd[1 - i]
};

static struct {
	int fd;
	uint16_t port;
} listeners[MAX_RELAYS];
static size_t listener_count;
static struct pair pairs[MAX_PAIRS];

int relay_listen(const uint16_t *ports, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(ports[i])};
		int one = 1, s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (s < 0 || bind(s, (struct sockaddr *)&at, sizeof at) < 0 || listen(s, 64) < 0)
			return -1;
		listeners[listener_count].fd = s;
		listeners[listener_count++].port = ports[i];
	}
	return 0;
}

void keep_only(const int *fds, size_t n)
{
	for (unsigned from = STDERR_FILENO + 1, next;; from = next + 1) {
		next = ~0U;
		for (size_t i = 0; i < n; i++)
			if ((unsigned)fds[i] >= from && (unsigned)fds[i] < next)
				next = (unsigned)fds[i];
		if (next > from)
			syscall(SYS_close_range, from, next == ~0U ? next : next - 1, 0);
		if (next == ~0U)
			return;
	}
}

// drop frees a pair. Data that was sent still arrives. If the pair is broken, each side gets a reset
// instead.
static void drop(struct pair *p, int broken)
{
	struct linger now = {.l_onoff = 1};
	for (int i = 0; i < 2; i++) {
		if (broken)
			setsockopt(p->fd[i], SOL_SOCKET, SO_LINGER, &now, sizeof now);
		close(p->fd[i]);
		p->fd[i] = -1;
		free(p->half[i].buf);
		p->half[i] = (struct half){0};
	}
}

static void take(int listener, uint16_t port, uint32_t gateway)
{
	struct pair *p = NULL;
	int c = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (c < 0)
		return;
	for (int i = 0; i < MAX_PAIRS && p == NULL; i++)
		if (pairs[i].fd[0] < 0)
			p = &pairs[i];
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = gateway};
	int u = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	uint8_t *a = malloc(BUFFER), *b = malloc(BUFFER);
	if (p == NULL || u < 0 || a == NULL || b == NULL ||
	    (connect(u, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)) {
		close(c);
		if (u >= 0)
			close(u);
		free(a);
		free(b);
		return;
	}
	*p = (struct pair){.fd = {c, u}, .connecting = 1, .half = {{.buf = a}, {.buf = b}}};
}

// carry moves as much as possible in one direction; -1 when the pair is broken.
static int carry(struct half *h, int from, int to)
{
	if (h->off == h->len && !h->ended) {
		ssize_t n = read(from, h->buf, BUFFER);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -1;
		h->off = 0;
		h->len = (size_t)n;
		h->ended = n == 0;
	}
	while (h->off < h->len) {
		ssize_t n = send(to, h->buf + h->off, h->len - h->off, MSG_NOSIGNAL);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -1;
		h->off += (size_t)n;
	}
	if (h->ended && !h->closed) {
		h->closed = 1;
		shutdown(to, SHUT_WR);
	}
	return 0;
}

static short wanted(const struct pair *p, int i)
{
	if (p->connecting)
		return i == 1 ? POLLOUT : 0;
	const struct half *from = &p->half[i], *to = &p->half[1 - i];
	return (short)((from->off == from->len && !from->ended ? POLLIN : 0) | (to->off < to->len ? POLLOUT : 0));
}

static void serve(struct pair *p, short events0, short events1)
{
	int broken = 0;
	if (p->connecting && events1) {
		int err = 0;
		socklen_t n = sizeof err;
		getsockopt(p->fd[1], SOL_SOCKET, SO_ERROR, &err, &n);
		p->connecting = 0;
		broken = err != 0;
	}
	if (!p->connecting && !broken)
		broken = carry(&p->half[0], p->fd[0], p->fd[1]) < 0 || carry(&p->half[1], p->fd[1], p->fd[0]) < 0;
	broken = broken || (events0 & POLLERR);
	if (broken || (p->half[0].closed && p->half[1].closed))
		drop(p, broken);
}

void relay_run(uint32_t gateway)
{
	static struct pollfd polled[MAX_RELAYS + 2 * MAX_PAIRS];
	int kept[MAX_RELAYS];
	for (size_t i = 0; i < listener_count; i++)
		kept[i] = listeners[i].fd;
	keep_only(kept, listener_count);
	for (int i = 0; i < MAX_PAIRS; i++)
		pairs[i].fd[0] = pairs[i].fd[1] = -1;
	for (;;) {
		size_t n = 0;
		for (size_t i = 0; i < listener_count; i++)
			polled[n++] = (struct pollfd){listeners[i].fd, POLLIN, 0};
		for (int i = 0; i < MAX_PAIRS; i++)
			for (int side = 0; side < 2; side++) {
				short events = pairs[i].fd[0] < 0 ? 0 : wanted(&pairs[i], side);
				polled[n++] = (struct pollfd){events ? pairs[i].fd[side] : -1, events, 0};
			}
		if (poll(polled, n, -1) < 0)
			continue;
		for (int i = 0; i < MAX_PAIRS; i++) {
			struct pollfd *e = &polled[listener_count + 2 * (size_t)i];
			if (pairs[i].fd[0] >= 0 && (e[0].revents || e[1].revents))
				serve(&pairs[i], e[0].revents, e[1].revents);
		}
		for (size_t i = 0; i < listener_count; i++)
			if (polled[i].revents)
				take(listeners[i].fd, listeners[i].port, gateway);
	}
}
