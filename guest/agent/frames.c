// Frames wait in one buffer until the host accepts them.
#define _GNU_SOURCE
#include "frames.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_PIPE = 1 << 20 };  // bytes

uint8_t out_buf[OUT_SIZE];
size_t out_off, out_len, out_head;

void nonblocking(int fd, int on)
{
	int fl = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, on ? fl | O_NONBLOCK : fl & ~O_NONBLOCK);
}

int write_all(int fd, const void *buf, size_t n)
{
	const uint8_t *p = buf;
	while (n > 0) {
		ssize_t w = write(fd, p, n);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return -1;
		p += w;
		n -= (size_t)w;
	}
	return 0;
}

size_t out_room(void)
{
	if (out_head > 0) {
		memmove(out_buf, out_buf + out_head, out_len - out_head);
		out_len -= out_head;
		out_off -= out_head;
		out_head = 0;
	}
	return OUT_SIZE - out_len;
}

void out_frame(uint8_t type, const void *data, size_t n)
{
	uint8_t *p = out_buf + out_len;
	put32(p, (uint32_t)n);
	p[4] = type;
	memcpy(p + HEADER_SIZE, data, n);
	out_len += HEADER_SIZE + n;
}

int out_flush(int conn)
{
	while (out_off < out_len) {
		ssize_t w = send(conn, out_buf + out_off, out_len - out_off, MSG_NOSIGNAL);
		if (w < 0) {
			if (errno == EINTR)
				continue;
			return errno == EAGAIN ? 0 : -1;
		}
		out_off += (size_t)w;
		while (out_off - out_head >= HEADER_SIZE && out_off - out_head >= HEADER_SIZE + get32(out_buf + out_head))
			out_head += HEADER_SIZE + get32(out_buf + out_head);
	}
	out_head = out_off = out_len = 0;
	return 0;
}

ssize_t pump(int fd, uint8_t type)
{
	if (out_room() < HEADER_SIZE + MAX_CHUNK)
		return -1;
	uint8_t *p = out_buf + out_len;
	ssize_t n = read(fd, p + HEADER_SIZE, MAX_CHUNK);
	if (n <= 0)
		return n;
	put32(p, (uint32_t)n);
	p[4] = type;
	out_len += HEADER_SIZE + (size_t)n;
	return n;
}

// flush_streams reads at most a pipe's size, which bounds the output of a program that has ended.
// Remaining processes may continue to write.
int flush_streams(struct agent *a, int conn)
{
	int fds[2] = {a->out_r, a->err_r};
	for (int i = 0; i < 2; i++) {
		ssize_t n, left = fds[i] < 0 ? 0 : fcntl(fds[i], F_GETPIPE_SZ);
		if (left < 0)  // Nanos does not report a pipe's size
			left = MAX_PIPE;
		for (; left > 0 && (n = pump(fds[i], i == 0 ? FRAME_STDOUT : FRAME_STDERR)) > 0; left -= n)
			if (out_flush(conn) < 0)
				return -1;
	}
	return 0;
}

void discard(int fd)
{
	static uint8_t junk[MAX_CHUNK];
	while (read(fd, junk, sizeof junk) > 0)
		;
}
