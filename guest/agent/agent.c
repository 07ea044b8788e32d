// Serves one conversation with the host. The bell is a datagram that asks the host for a seed. After
// the seed come files, the start, streams and the exit. There is one thread with one poll loop, and
// no allocation after the start.
#define _GNU_SOURCE
#include "agent.h"
#include "files.h"
#include "frames.h"
#include "host.h"
#include "out.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	BELL_MS = 50,  // between two bells until the host answers
};

static uint8_t in_buf[HEADER_SIZE + MAX_FRAME];  // the frame being received
static size_t in_len;
static size_t stdin_off, stdin_len;  // part of in_buf still to be written to stdin
static int sockets[2];  // listening sockets for the host; -1 when no more connections are expected
static int started;     // the start frame was sent to Node: from here on output counts
static int told;        // the host knows that the user's code has started
static int seeded;      // fresh entropy was received: the host may connect
static int heard;       // the host has sent something on this connection
static int rehearsing;  // the conversation is a rehearsal, and another one follows
static int layered;     // send back the changes to the code's root instead of /out
static int lasting;     // the conversation survives the loss of its connection
static int rejoined;    // this is a later connection
static int over;        // the program has ended; the host learns it as soon as it is connected
// The agent hands out the compiled code at most once, before the code runs.
static enum { HAND_NO, HAND_ASKED, HAND_UNDER_WAY, HAND_WAITS } hand_out;
static uint32_t hand_left;  // bytes left to hand out

// Incoming frames -----------------------------------------------------------

static void close_stdin(struct agent *a)
{
	// A terminal has no end of file: its EOF character on an empty line means the end.
	if (a->tty && a->in_w >= 0 && write(a->in_w, "\4", 1) < 0)
		dprintf(a->log, "unitask: cannot end the terminal's input: %s\n", strerror(errno));
	if (a->tty)
		return;
	if (a->in_w >= 0)
		close(a->in_w);
	a->in_w = -1;
}

// feed_stdin writes as much to the program's pipe as it accepts.
static void feed_stdin(struct agent *a)
{
	while (stdin_off < stdin_len) {
		ssize_t w = a->in_w < 0 ? -1 : write(a->in_w, in_buf + HEADER_SIZE + stdin_off, stdin_len - stdin_off);
		if (w < 0 && a->in_w >= 0 && errno == EINTR)
			continue;
		if (w < 0 && a->in_w >= 0 && errno == EAGAIN)
			return;
		if (w < 0) {  // the program closed it: the rest has no reader
			close_stdin(a);
			break;
		}
		stdin_off += (size_t)w;
	}
	stdin_off = stdin_len = 0;
}

static void shut_sockets(void)
{
	for (int i = 0; i < 2; i++)
		close(sockets[i]);
	sockets[0] = sockets[1] = -1;
}

static int on_frame(struct agent *a, uint8_t type, const uint8_t *p, size_t n)
{
	if (type != FRAME_FILE && type != FRAME_DATA)
		settle_files(a);
	switch (type) {
	case FRAME_FILE:
		return on_file(a, p, n);
	case FRAME_DATA:
		return on_data(a, p, n);
	case FRAME_RELAY: {
		uint16_t ports[MAX_RELAYS];
		if (started || n % 2 != 0 || n / 2 > MAX_RELAYS)
			return -1;
		for (size_t i = 0; i < n / 2; i++)
			ports[i] = get16(p + 2 * i);
		if (a->relay(a, ports, n / 2) == 0)
			return 0;
		dprintf(a->log, "unitask: cannot relay a port: %s\n", strerror(errno));
		return -1;
	}
	case FRAME_LASTING:
		if ((started && !lasting) || rehearsing || n != 0)
			return -1;
		lasting = 1;
		return 0;
	case FRAME_LAYER:
		if (started || n != 0 || a->layer == NULL)
			return -1;
		layered = 1;
		return 0;
	case FRAME_LOOK:
		return started || rehearsing ? -1 : look_at(p, n);
	case FRAME_PROCESSES:
		return started || rehearsing || n != 4 || a->processes == NULL ? -1 : a->processes(get32(p));
	case FRAME_HAND_OUT:
		if (started || rehearsing || lasting || n != 0)
			return -1;
		hand_out = HAND_ASKED;
		return 0;
	case FRAME_CONTINUE:
		if (hand_out != HAND_WAITS || n != 0)
			return -1;
		hand_out = HAND_NO;
		p = (const uint8_t[]){CONTROL_CONTINUE};
		if (a->ctl < 0)
			return 0;
		write_all(a->ctl, p, 1);  // a failure means that the program has ended, which is no error
		close(a->ctl);  // from here on the process is the user's code
		a->ctl = -1;
		return 0;
	case FRAME_PROCESS:
		return a->lazy && a->process ? a->process(a, p, n) : -1;
	case FRAME_SESSION:
		return n == 0 && !started && !rehearsing && a->session ? a->session(a) : -1;
	case FRAME_TERMINAL:
		if (n != 4 || a->terminal == NULL || (!a->lazy && !a->tty) || a->terminal(a, get16(p), get16(p + 2)) < 0)
			return -1;
		return 0;
	case FRAME_START:
		if (a->lazy) {
			a->lazy = 0;
			a->spawn(a);
		}
		discard(a->out_r);
		discard(a->err_r);
		look_from();
		started = 1;
		if (!rehearsing && !lasting)  // a lasting frame comes before the start frame
			shut_sockets();
		return write_all(a->ctl, in_buf, HEADER_SIZE + n);
	case FRAME_STDIN:
		stdin_off = 0;
		stdin_len = n;
		feed_stdin(a);
		return 0;
	case FRAME_STDIN_END:
		close_stdin(a);
		return 0;
	}
	return -1;
}

// receive reads from the host and handles every complete frame; -1 ends the run.
static int receive(struct agent *a, int conn)
{
	while (stdin_len == 0) {
		size_t want = HEADER_SIZE;
		if (in_len >= HEADER_SIZE) {
			uint32_t n = get32(in_buf);
			if (n > MAX_FRAME)
				return -1;
			want = HEADER_SIZE + n;
		}
		if (in_len < want) {
			ssize_t r = recv(conn, in_buf + in_len, want - in_len, 0);
			if (r < 0)
				return errno == EAGAIN || errno == EINTR ? 0 : -1;
			if (r == 0)
				return -1;
			heard = 1;
			in_len += (size_t)r;
			continue;
		}
		if (in_len == HEADER_SIZE && want > HEADER_SIZE)
			continue;
		in_len = 0;
		if (on_frame(a, in_buf[4], in_buf + HEADER_SIZE, want - HEADER_SIZE) < 0)
			return -1;
	}
	return 0;
}

// The loop ------------------------------------------------------------------

// finish sends the remaining output and how the program ended, then the contents of /out if the host
// asks for them. It waits until the host has received all. The host then closes the connection, or
// usually kills the machine.
static void finish(struct agent *a, int conn, const struct agent_end *end)
{
	char json[128], refused[32] = "";
	unsigned count = a->refused ? a->refused() : 0;
	nonblocking(conn, 0);
	if (out_flush(conn) < 0 || flush_streams(a, conn) < 0)
		return;
	if (count > 0)
		snprintf(refused, sizeof refused, ",\"refused\":%u", count);
	int n = snprintf(json, sizeof json, "{\"code\":%d,\"signal\":%d,\"oom\":%s,\"out\":%s%s}", end->code, end->signal,
			 end->oom ? "true" : "false", layered || !out_empty() ? "true" : "false", refused);
	tell_left();
	out_frame(FRAME_EXIT, json, (size_t)n);
	if (out_flush(conn) < 0)
		return;
	struct timeval wait = {.tv_sec = 5};
	setsockopt(conn, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
	for (;;) {  // frames of standard input may still arrive
		size_t want = HEADER_SIZE + (in_len >= HEADER_SIZE ? get32(in_buf) : 0);
		if (want > sizeof in_buf)
			return;
		if (in_len >= HEADER_SIZE && in_len == want) {
			in_len = 0;
			if (in_buf[4] == FRAME_COLLECT) {
				if (a->freeze)
					a->freeze();
				uint64_t most = want == HEADER_SIZE + 8 ? get64(in_buf + HEADER_SIZE) : UINT64_MAX;
				if ((layered ? send_layer(a, conn) : send_artifacts(conn, most)) < 0)
					return;
			}
			continue;
		}
		ssize_t r = recv(conn, in_buf + in_len, want - in_len, 0);
		if (r <= 0)
			return;
		in_len += (size_t)r;
	}
}

// forget ends a rehearsal and restores the agent's earlier state.
static void forget(struct agent *a, int conn, int udp)
{
	close(conn);
	drop_file(a);
	in_len = out_head = out_off = out_len = stdin_off = stdin_len = 0;
	started = seeded = rehearsing = 0;
	hand_out = HAND_NO;
	forget_folder();  // the program is gone, and so is its folder
	out_empty();  // rehearses a call that the end of a run makes
	tell(a, udp, WORD_FORGOTTEN);
}

// greet sends hello. On a later connection of a lasting conversation, the agent sends nothing else
// until the host has answered. Before that the host may have given up the connection, and output
// would be lost.
static void greet(struct agent *a, int conn)
{
	char hello[128];
	uint8_t frame[HEADER_SIZE + sizeof hello];
	int n = snprintf(hello, sizeof hello, "{\"version\":%d,\"kernel\":\"%s\"%s}", VERSION, a->kernel, started ? ",\"started\":true" : "");
	if (!started) {
		out_frame(FRAME_HELLO, hello, (size_t)n);
		return;
	}
	put32(frame, (uint32_t)n);
	frame[4] = FRAME_HELLO;
	memcpy(frame + HEADER_SIZE, hello, (size_t)n);
	if (send(conn, frame, HEADER_SIZE + (size_t)n, MSG_NOSIGNAL) != HEADER_SIZE + n)
		dprintf(a->log, "unitask: cannot greet: %s\n", strerror(errno));
}

// lose closes a lasting conversation's connection. The agent sends incomplete frames again on the
// next connection. The host sends a frame that arrived incompletely again, if it still wants to.
static void lose(struct agent *a, int conn)
{
	struct linger now = {.l_onoff = 1};
	setsockopt(conn, SOL_SOCKET, SO_LINGER, &now, sizeof now);
	close(conn);
	in_len = 0;  // drop an incomplete frame; a frame that feed_stdin still writes is complete
	out_off = out_head;
	out_room();
	drop_file(a);
}

// on_program begins to hand out the compiled code, whose length comes first.
static void on_program(struct agent *a)
{
	uint8_t size[4];
	if (hand_out != HAND_ASKED || !told || recv(a->ctl, size, sizeof size, MSG_DONTWAIT) != sizeof size || get32(size) > MAX_PROGRAM)
		return;
	hand_left = get32(size);
	hand_out = HAND_UNDER_WAY;
}

// hand_on moves a part of the program into the out buffer.
static void hand_on(struct agent *a)
{
	ssize_t n;
	uint8_t *p;
	while (hand_left > 0 && out_room() >= HEADER_SIZE + MAX_CHUNK) {
		p = out_buf + out_len;
		n = recv(a->ctl, p + HEADER_SIZE, hand_left < MAX_CHUNK ? hand_left : MAX_CHUNK, MSG_DONTWAIT);
		if (n < 0)
			return;
		if (n == 0) {  // the program ended before it had sent all
			hand_out = HAND_NO;
			close(a->ctl);
			a->ctl = -1;
			return;
		}
		put32(p, (uint32_t)n);
		p[4] = FRAME_PROGRAM;
		out_len += HEADER_SIZE + (size_t)n;
		hand_left -= (uint32_t)n;
	}
	if (hand_left > 0 || out_room() < HEADER_SIZE)
		return;
	out_frame(FRAME_PROGRAM, "", 0);
	hand_out = HAND_WAITS;
}

// on_word handles a byte from Node: R (ready), S (the user's code has started) or W (rehearsed). E
// and an exit code mean that the program ends. N and an exit code mean that it would end, but that
// this is a rehearsal. on_word returns 1 when the program has ended. Two writes may arrive as one,
// and a quick program may end before the agent has read that it began. After the start the user's
// code may send these bytes itself. It gains nothing, because it could also end.
static int on_word(struct agent *a, int conn, int udp, int *ready, struct agent_end *end)
{
	static uint8_t before;  // E or N, whose exit code follows
	uint8_t c, word = before;
	ssize_t n = recv(a->ctl, &c, 1, MSG_DONTWAIT);
	if (n == 0) {
		close(a->ctl);
		a->ctl = -1;
	}
	if (n <= 0)
		return 0;
	before = 0;
	if (word == CONTROL_EXIT && (conn >= 0 || (lasting && told))) {
		*end = (struct agent_end){.code = c};
		return 1;
	}
	if (word)
		return 0;
	if (c == CONTROL_EXIT || c == CONTROL_WOULD_EXIT) {
		before = c;
	} else if (c == CONTROL_READY && !*ready) {
		*ready = 1;
		tell(a, udp, WORD_BELL);
	} else if (c == CONTROL_STARTED && conn >= 0 && !rehearsing && !told) {
		told = 1;
		out_frame(FRAME_STARTED, "", 0);
	} else if (c == CONTROL_PROGRAM) {
		on_program(a);
	} else if (c == CONTROL_REHEARSED && conn >= 0 && rehearsing && flush_streams(a, conn) == 0) {
		out_frame(FRAME_REHEARSED, "", 0);
	}
	return 0;
}

// there tests whether the host is present.
static int there(int conn) { return conn >= 0 && (!rejoined || heard); }

int agent_run(struct agent *a, struct agent_end *end)
{
	int ready = a->lazy, conn = -1;
	int udp = listen_socket(a, SOCK_DGRAM), lsn = listen_socket(a, SOCK_STREAM);
	sockets[0] = udp, sockets[1] = lsn;
	if (udp < 0 || lsn < 0)
		return -1;
	nonblocking(a->in_w, 1);
	nonblocking(a->out_r, 1);
	nonblocking(a->err_r, 1);
	if (ready)
		tell(a, udp, WORD_BELL);
	for (;;) {
		enum { EVENT, CTL, OUT, ERR, UDP, LSN, CONN, IN, COUNT };
		struct pollfd p[COUNT];
		for (int i = 0; i < COUNT; i++)
			p[i] = (struct pollfd){.fd = -1};
		p[EVENT] = (struct pollfd){over ? -1 : a->event, POLLIN, 0};
		int room = (conn < 0 && !started) || out_room() >= HEADER_SIZE + MAX_CHUNK;
		p[CTL] = (struct pollfd){hand_out != HAND_UNDER_WAY || room ? a->ctl : -1, POLLIN, 0};
		if (room) {
			p[OUT] = (struct pollfd){a->out_r, POLLIN, 0};
			p[ERR] = (struct pollfd){a->err_r, POLLIN, 0};
		}
		if (conn < 0 || lasting)
			p[UDP] = (struct pollfd){udp, POLLIN, 0};
		if (conn < 0) {
			p[LSN] = (struct pollfd){seeded ? lsn : -1, POLLIN, 0};
		} else {
			short ev = (short)((stdin_len == 0 ? POLLIN : 0) | (there(conn) && out_off < out_len ? POLLOUT : 0));
			p[CONN] = (struct pollfd){conn, ev, 0};
			p[IN] = (struct pollfd){stdin_len > 0 ? a->in_w : -1, POLLOUT, 0};
		}
		int timeout = conn < 0 && ready && !seeded ? BELL_MS : conn >= 0 && started && a->again_ms > 0 ? a->again_ms : -1;
		int n = poll(p, COUNT, timeout);
		if (n < 0 && errno != EINTR)
			return -1;
		if (n == 0 && conn < 0)
			tell(a, udp, WORD_BELL);
		if (n < 0 || (n == 0 && conn < 0))
			continue;
		if (n == 0)
			for (int i = OUT; i <= ERR; i++)
				p[i].revents = p[i].events;

		enum datagram said = p[UDP].revents ? take_datagram(a, udp, seeded) : NOISE;
		if (said == REHEARSE && ready && !a->lazy && !started && !lasting) {
			rehearsing = 1;
			tell(a, udp, WORD_REHEARSE);
		}
		if (said == SEED) {
			seeded = 1;
			if (lasting && told) {  // the host has another network
				if (conn >= 0)
					lose(a, conn);
				conn = -1;
				if (a->reset)
					a->reset();
				continue;
			}
		}
		if (p[LSN].revents && (conn = accept_host(a, lsn)) >= 0) {
			int one = 1;
			setsockopt(conn, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
			heard = 0;
			rejoined = started;
			greet(a, conn);
		}
		if (hand_out != HAND_UNDER_WAY && p[CTL].revents && !over && on_word(a, conn, udp, &ready, end)) {
			if (a->settle)
				a->settle();
			over = 1;
		}
		if (hand_out == HAND_UNDER_WAY)
			hand_on(a);
		if (over && there(conn)) {
			finish(a, conn, end);
			return 0;
		}
		for (int i = OUT; i <= ERR; i++) {
			if (!p[i].revents)
				continue;
			int *fd = i == OUT ? &a->out_r : &a->err_r;
			if (!started) {
				discard(*fd);
			} else if (pump(*fd, i == OUT ? FRAME_STDOUT : FRAME_STDERR) == 0) {
				close(*fd);
				*fd = -1;
			}
		}
		if (p[IN].revents)
			feed_stdin(a);
		if (p[CONN].revents & (POLLHUP | POLLERR) || (p[CONN].revents & POLLIN && receive(a, conn) < 0) ||
		    (there(conn) && out_flush(conn) < 0)) {
			// The host had given up a connection on which it sent nothing.
			if (!heard) {
				close(conn);
				if (!started)
					out_head = out_off = out_len = 0;
			} else if (lasting && told) {
				lose(a, conn);
				seeded = 0;
			} else if (!rehearsing) {
				return 0;
			} else {
				forget(a, conn, udp);
			}
			conn = -1;
		}
		if (sockets[0] < 0)
			udp = lsn = -1;
		if (p[EVENT].revents && !over && a->ended(a, end)) {
			if (conn < 0 && !(lasting && told))
				return -1;
			over = 1;
		}
		if (over && there(conn)) {
			finish(a, conn, end);
			return 0;
		}
	}
}
