// The program of a session starts commands, carries their streams and reports how they ended. On
// linux the program is a child process of PID 1 and runs as root, so that no command can stop it. Its
// commands run as the code's user (sessionstart.c). On Nanos the program is a thread of the one
// process (../nanos/session.c). It trusts the host, and does not interpret the commands' output.
#define _GNU_SOURCE
#include "../agent/out.h"
#include "../contract/contract.h"
#include "session.h"
#include "sessioncommand.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static const struct session *host;
static struct command commands[MAX_COMMANDS];
static uint8_t in[STEP_HEADER + MAX_STEP];
static size_t in_len;
static int held;  // the host wants no more output

static void fail(const char *what)
{
	dprintf(host->log, "unitask: session: %s: %s\n", what, strerror(errno));
	host->end(EXIT_UNKNOWN);
}

// Frames --------------------------------------------------------------------

static void write_all(const void *buf, size_t n)
{
	for (const uint8_t *p = buf; n > 0;) {
		ssize_t w = write(host->out, p, n);
		if (w < 0 && interrupted(errno))
			continue;
		if (w <= 0)
			fail("write");
		p += w;
		n -= (size_t)w;
	}
}

// say sends a frame, and fills in the header, for which the frame has room before the data.
static void say(uint8_t *frame, uint8_t type, uint32_t id, size_t n)
{
	uint32_t len = htonl((uint32_t)n);
	memcpy(frame, &len, 4);
	frame[4] = type;
	id = htonl(id);
	memcpy(frame + 5, &id, 4);
	write_all(frame, STEP_HEADER + n);
}

static void say_number(uint8_t type, uint32_t id, uint32_t v)
{
	uint8_t frame[STEP_HEADER + 4];
	v = htonl(v);
	memcpy(frame + STEP_HEADER, &v, 4);
	say(frame, type, id, 4);
}

// Commands ------------------------------------------------------------------

static struct command *find(uint32_t id)
{
	for (struct command *c = commands; c < commands + MAX_COMMANDS; c++)
		if (c->pid > 0 && c->id == id)
			return c;
	return NULL;
}

static void shut(struct command *c, int stream)
{
	if (c->fd[stream] >= 0)
		close(c->fd[stream]);
	c->fd[stream] = -1;
}

static void drop_pending(struct command *c, int stream)
{
	free(c->to[stream].p);
	c->to[stream] = (struct pending){.fd = c->to[stream].fd};
}

static void release(struct command *c)
{
	for (int i = 0; i < STREAMS; i++)
		shut(c, i);
	if (c->why >= 0)
		close(c->why);
	drop_pending(c, IN);
	drop_pending(c, CTL);
	c->pid = 0;
}

// began reads a command's report of its start. It does not wait, because other processes of the
// code's user can stop the command before its report. It returns 1 when the start has failed and the
// host knows it.
static int began(struct command *c)
{
	int failed = 0;
	if (c->why < 0)
		return 0;
	ssize_t n = read(c->why, &failed, sizeof failed);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	close(c->why);
	c->why = -1;
	if (n != sizeof failed) {
		if (c->tell_pid)
			say_number(STEP_PID, c->id, (uint32_t)c->pid);
		return 0;
	}
	say_number(STEP_FAILED, c->id, (uint32_t)failed);
	release(c);
	return 1;
}

// slot returns a free slot, else the slot of a command that has ended.
static struct command *slot(void)
{
	struct command *ended = NULL;
	for (struct command *c = commands; c < commands + MAX_COMMANDS; c++) {
		if (c->pid == 0)
			return c;
		if (c->over && ended == NULL)
			ended = c;
	}
	if (ended)
		release(ended);
	return ended;
}

// feed writes as much of the pending input to a command as it accepts.
static void feed(struct command *c, int stream)
{
	struct pending *w = &c->to[stream];
	while (w->off < w->len) {
		ssize_t n = c->fd[stream] < 0 ? -1 : write(w->fd, w->p + w->off, w->len - w->off);
		if (n < 0 && c->fd[stream] >= 0 && errno == EINTR)
			continue;
		if (n < 0 && c->fd[stream] >= 0 && errno == EAGAIN)
			return;
		if (n < 0) {  // no reader: drop the rest
			shut(c, stream);
			break;
		}
		w->off += (size_t)n;
	}
	int end = w->end, some = w->len > 0;
	drop_pending(c, stream);
	if (some)
		say_number(STEP_TAKEN, c->id, (uint32_t)stream);
	if (end && c->terminal && c->fd[IN] >= 0) {  // a terminal has no end of file except its EOF character
		ssize_t n = write(c->fd[IN], "\4", 1);
		(void)n;
	} else if (end) {
		shut(c, stream);
	}
}

static void give(struct command *c, int stream, const uint8_t *p, size_t n)
{
	struct pending *w = &c->to[stream];
	if (w->len > 0 || (w->p = malloc(n)) == NULL)
		fail("more input than was asked for");
	memcpy(w->p, p, n);
	w->len = n;
	feed(c, stream);
}

static void on_frame(uint8_t type, uint32_t id, uint8_t *p, size_t n)
{
	struct command *c = find(id);
	if (type == STEP_HOLD || type == STEP_CONTINUE) {
		uint8_t frame[STEP_HEADER];
		held = type == STEP_HOLD;
		if (held)
			say(frame, STEP_HELD, 0, 0);
		return;
	}
	if (type == STEP_EXEC) {
		struct command *free = c ? NULL : slot();
		int failed = free ? host->start(free, id, p, n) : c ? EEXIST : EAGAIN;
		if (failed)
			say_number(STEP_FAILED, id, (uint32_t)failed);
		return;
	}
	if (c == NULL || c->over)
		return;  // the command has just ended
	switch (type) {
	case STEP_INPUT:
	case STEP_CONTROL:
		if (n > 0)
			give(c, type == STEP_INPUT ? IN : CTL, p, n);
		break;
	case STEP_INPUT_END:
		c->to[IN].end = 1;
		feed(c, IN);
		break;
	case STEP_SIGNAL:
		if (n == 2 && p[1])
			c->last = 1;
		if (n > 0 && p[0] > 0)
			host->signal(c, p[0]);
		break;
	case STEP_RESIZE:
		if (n == 4 && c->terminal) {
			struct winsize size = {.ws_col = (unsigned short)get16(p), .ws_row = (unsigned short)get16(p + 2)};
			ioctl(c->fd[OUT], TIOCSWINSZ, &size);
		}
		break;
	default:
		errno = EPROTO;
		fail("a frame from the host");
	}
}

static size_t wanted(void)
{
	uint32_t n;
	if (in_len < STEP_HEADER)
		return STEP_HEADER;
	memcpy(&n, in, 4);
	n = ntohl(n);
	if (n >= MAX_STEP)
		fail("a frame's length");
	return STEP_HEADER + n;
}

// receive reads once, and handles the frame if that is complete.
static void receive(void)
{
	ssize_t r = read(host->in, in + in_len, wanted() - in_len);
	if (r < 0 && (interrupted(errno) || errno == EAGAIN))
		return;
	if (r <= 0)
		host->end(0);  // the host has closed the stream
	in_len += (size_t)r;
	if (in_len < STEP_HEADER || in_len < wanted())
		return;
	uint32_t id;
	memcpy(&id, in + 5, 4);
	in[in_len] = 0;
	size_t n = in_len - STEP_HEADER;
	in_len = 0;
	on_frame(in[4], ntohl(id), in + STEP_HEADER, n);
}

// tell_out tells the host that /out is not empty, before the end of the command that filled it.
static void tell_out(const struct command *c)
{
	uint8_t frame[STEP_HEADER];
	if (!out_empty())
		say(frame, STEP_OUT, c->id, 0);
}

// pump passes on one chunk of a stream. It returns the number of bytes, 0 at the end, -1 when there
// is nothing now.
static ssize_t pump(struct command *c, int stream)
{
	static uint8_t frame[STEP_HEADER + MAX_CHUNK];
	static const uint8_t types[STREAMS] = {[CTL] = STEP_REPLY, [OUT] = STEP_STDOUT, [ERR] = STEP_STDERR};
	if (c->fd[stream] < 0)
		return 0;
	ssize_t n = read(c->fd[stream], frame + STEP_HEADER, MAX_CHUNK);
	if (n < 0 && (errno == EAGAIN || interrupted(errno)))
		return -1;
	if (n <= 0) {  // a terminal ends with EIO
		shut(c, stream);
		return 0;
	}
	if (!c->over && stream == CTL)
		tell_out(c);
	if (!c->over)
		say(frame, types[stream], c->id, (size_t)n);
	return n;
}

// drain passes on the current contents of a stream, and does not wait for later output.
static void drain(struct command *c, int stream)
{
	enum { HELD = 1 << 20 };  // bytes, more than any pipe holds
	ssize_t n, left = HELD;
	while (left > 0 && (n = pump(c, stream)) > 0)
		left -= n;
}

void session_ended(pid_t pid, uint32_t how)
{
	struct command *c = commands;
	while (c < commands + MAX_COMMANDS && (c->pid != pid || c->over))
		c++;
	if (c == commands + MAX_COMMANDS || began(c))
		return;
	for (int i = CTL; i < STREAMS; i++)
		drain(c, i);
	tell_out(c);
	say_number(STEP_END, c->id, how);
	c->over = 1;
	if (c->last)
		host->signal(c, SIGKILL);
	shut(c, IN);
	shut(c, CTL);
	drop_pending(c, IN);
	drop_pending(c, CTL);
	if (c->terminal || (c->fd[OUT] < 0 && c->fd[ERR] < 0))
		release(c);
}

enum { WHY = STREAMS, GIVE, POLLED };  // GIVE is the stream for a command's descriptor 3

// poll_command sets the events to wait for.
static void poll_command(const struct command *c, struct pollfd q[POLLED])
{
	int lives = c->pid > 0 && !held;
	for (int s = 0; s < STREAMS; s++)
		q[s] = (struct pollfd){lives ? c->fd[s] : -1, POLLIN, 0};
	q[WHY] = (struct pollfd){lives ? c->why : -1, POLLIN, 0};
	q[IN].events = POLLOUT;
	if (c->to[IN].len == 0)
		q[IN].fd = -1;
	q[GIVE] = (struct pollfd){lives && c->to[CTL].len > 0 ? c->to[CTL].fd : -1, POLLOUT, 0};
}

static void serve_command(struct command *c, const struct pollfd q[POLLED])
{
	if (q[WHY].revents && began(c))
		return;
	if (q[IN].revents)
		feed(c, IN);
	if (q[GIVE].revents)
		feed(c, CTL);
	if (q[CTL].revents) {  // pass on earlier output first
		drain(c, OUT);
		drain(c, ERR);
		pump(c, CTL);
	}
	if (q[OUT].revents)
		pump(c, OUT);
	if (q[ERR].revents)
		pump(c, ERR);
	if (c->over && c->fd[OUT] < 0 && c->fd[ERR] < 0)
		release(c);
}

void session_serve(const struct session *with)
{
	enum { COUNT = 2 + MAX_COMMANDS * POLLED };
	static struct pollfd p[COUNT];
	host = with;
	for (;;) {
		p[0] = (struct pollfd){host->in, POLLIN, 0};
		p[1] = (struct pollfd){held ? -1 : host->event, POLLIN, 0};
		for (int i = 0; i < MAX_COMMANDS; i++)
			poll_command(&commands[i], p + 2 + i * POLLED);
		int n = poll(p, COUNT, host->again_ms > 0 ? host->again_ms : -1);
		if (n < 0) {
			if (interrupted(errno))
				continue;
			fail("poll");
		}
		for (int i = 0; n == 0 && i < COUNT; i++)
			if (p[i].fd >= 0)
				p[i].revents = p[i].events;
		for (int i = 0; i < MAX_COMMANDS; i++)
			serve_command(&commands[i], p + 2 + i * POLLED);
		if (p[1].revents)
			host->ended();
		if (p[0].revents)
			receive();
	}
}
