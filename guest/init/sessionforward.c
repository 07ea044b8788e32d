// Connects to a port of the machine, for a port that the host forwards. This command runs as the
// code's user, like every command. Standard input has the client's data, and standard output the
// server's. The command sends at most FORWARD_WINDOW bytes of the server's data. Each byte on
// descriptor 3 allows FORWARD_UNIT more, so a client that does not read costs the host no memory.
#define _GNU_SOURCE
#include "../contract/contract.h"
#include "session.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONTROL = 3, PATIENCE = 10000 /* ms for a server that does not accept */ };

static int dial(const struct sockaddr *to, socklen_t size)
{
	int failed = 0;
	socklen_t len = sizeof failed;
	int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, to, size) < 0 && (failed = errno) == EINPROGRESS) {
		struct pollfd p = {fd, POLLOUT, 0};
		if (poll(&p, 1, PATIENCE) <= 0)
			failed = ETIMEDOUT;
		else
			getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &len);
	}
	if (failed) {
		close(fd);
		errno = failed;
		return -1;
	}
	return fd;
}

// reach connects to a server on the port of the loopback, or else of the machine's address.
static int reach(uint16_t port)
{
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = dial((struct sockaddr *)&four, sizeof four), failed = errno;
	if (fd < 0 && failed == ECONNREFUSED)
		fd = dial((struct sockaddr *)&six, sizeof six);
	if (fd < 0 && failed == ECONNREFUSED) {
		inet_pton(AF_INET, GUEST_IP, &four.sin_addr);
		fd = dial((struct sockaddr *)&four, sizeof four);
	}
	if (fd < 0)
		errno = failed;
	return fd;
}

int session_connect(const char *port)
{
	static uint8_t up[MAX_CHUNK], down[MAX_CHUNK];
	size_t off = 0, len = 0, room = FORWARD_WINDOW;
	int more = 1;  // the client may send more
	long number = strtol(port, NULL, 10);
	if (number < 1 || number > UINT16_MAX)
		return EINVAL;
	int fd = reach((uint16_t)number), one = 1;
	if (fd < 0)
		return errno;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	for (;;) {
		struct pollfd p[] = {
			{more && len == 0 ? STDIN_FILENO : -1, POLLIN, 0},
			{CONTROL, POLLIN, 0},
			{fd, (short)((room > 0 ? POLLIN : 0) | (len > 0 ? POLLOUT : 0)), 0},
		};
		if (room == 0 && len == 0)
			p[2].fd = -1;  // wait for room before noticing the server's end
		if (poll(p, 3, -1) < 0 && errno != EINTR)
			return errno;
		if (p[1].revents) {
			ssize_t n = read(CONTROL, down, FORWARD_WINDOW / FORWARD_UNIT);
			if (n <= 0)
				return n < 0 ? errno : 0;
			room += (size_t)n * FORWARD_UNIT;
		}
		if (p[0].revents) {
			ssize_t n = read(STDIN_FILENO, up, sizeof up);
			if (n <= 0) {
				more = 0;
				shutdown(fd, SHUT_WR);
			} else {
				off = 0, len = (size_t)n;
			}
		}
		if (len > 0) {
			ssize_t n = send(fd, up + off, len, MSG_NOSIGNAL);
			if (n >= 0) {
				off += (size_t)n, len -= (size_t)n;
			} else if (errno != EAGAIN && errno != EINTR) {  // the server reads no more, but may have written
				len = 0, more = 0;
				close(STDIN_FILENO);
			}
		}
		if (p[2].revents & ~POLLOUT && room > 0) {
			ssize_t n = read(fd, down, room < sizeof down ? room : sizeof down);
			if (n < 0 && (errno == EAGAIN || errno == EINTR))
				continue;
			if (n <= 0)
				return n < 0 ? errno : 0;
			for (ssize_t done = 0; done < n;) {
				ssize_t w = write(STDOUT_FILENO, down + done, (size_t)(n - done));
				if (w < 0)
					return errno;
				done += w;
			}
			room -= (size_t)n;
		}
	}
}
