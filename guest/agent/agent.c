// One conversation with the host: bell, seed, files, start, streams, exit.
// One thread, one poll loop, no allocation after the start.
#define _GNU_SOURCE
#include "agent.h"
#include "out.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	OUT_SIZE = 256 << 10,  // frames waiting for the host to read
	BELL_MS = 50,          // between two rings until the host answers
	OUT_DEPTH = 64,        // of folders in /out
	MAX_PIPE = 1 << 20,    // bytes
	MAX_WAITING = 64,      // files that are committed at once
};

static uint8_t in_buf[HEADER_SIZE + MAX_FRAME];  // the frame being received
static size_t in_len;
static uint8_t out_buf[OUT_SIZE];  // out_buf[out_off..out_len) waits to be sent
static size_t out_off, out_len;
static size_t out_head;  // the frame that out_off is in begins here: it is kept until all of it was sent
static size_t stdin_off, stdin_len;  // part of in_buf still owed to stdin
static int file_fd = -1;             // the file that data frames go to
static uint64_t file_left;
static struct file {
	uint64_t size, mtime;
	int fd;
} file_now, waiting[MAX_WAITING];  // the file that is being put, and those that wait for a commit
static size_t waiting_count;
static int sockets[2];  // by which the host comes; -1 when no other connection is to come
static int started;     // the start frame went to Node: from here on output counts
static int told;        // the host knows that the user's code has started
static int seeded;      // fresh entropy is in: the host may connect
static int heard;       // the host has said something on this connection
static int rehearsing;  // the conversation is a rehearsal, and another one comes
static int layered;     // what comes back is what the code changed of its root, and not /out
static int lasting;     // the conversation goes on when its connection is lost, on another one
static int rejoined;    // this is another one
static int over;        // the program has ended, and the host is to be told when it is there
static uint8_t nonce[NONCE_SIZE];  // of the last seed
// What the code is compiled to is handed out at most once, before it runs.
static enum { HAND_NO, HAND_ASKED, HAND_UNDER_WAY, HAND_WAITS } hand_out;
static uint32_t hand_left;  // bytes of it

static void put32(uint8_t *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); }
static uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }
static uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static void nonblocking(int fd, int on)
{
	int fl = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, on ? fl | O_NONBLOCK : fl & ~O_NONBLOCK);
}

static int write_all(int fd, const void *buf, size_t n)
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

// Outgoing frames -----------------------------------------------------------

static size_t out_room(void)
{
	if (out_head > 0) {
		memmove(out_buf, out_buf + out_head, out_len - out_head);
		out_len -= out_head;
		out_off -= out_head;
		out_head = 0;
	}
	return OUT_SIZE - out_len;
}

static void out_frame(uint8_t type, const void *data, size_t n)
{
	uint8_t *p = out_buf + out_len;
	put32(p, (uint32_t)n);
	p[4] = type;
	memcpy(p + HEADER_SIZE, data, n);
	out_len += HEADER_SIZE + n;
}

// out_flush sends what it can; -1 when the host is gone.
static int out_flush(int conn)
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

// pump moves one chunk of a stream into the out buffer. It returns the number
// of bytes moved, 0 at the end of the stream, -1 when there is nothing now.
static ssize_t pump(int fd, uint8_t type)
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

// flush_streams moves what the streams hold into frames and sends them; -1 when the
// host is gone. What the program left running may go on writing: a pipe's size holds
// all that was written before.
static int flush_streams(struct agent *a, int conn)
{
	int fds[2] = {a->out_r, a->err_r};
	for (int i = 0; i < 2; i++) {
		ssize_t n, left = fds[i] < 0 ? 0 : fcntl(fds[i], F_GETPIPE_SZ);
		if (left < 0)  // Nanos does not tell
			left = MAX_PIPE;
		for (; left > 0 && (n = pump(fds[i], i == 0 ? FRAME_STDOUT : FRAME_STDERR)) > 0; left -= n)
			if (out_flush(conn) < 0)
				return -1;
	}
	return 0;
}

// discard throws away what a stream holds: output of the time before the start.
static void discard(int fd)
{
	static uint8_t junk[MAX_CHUNK];
	while (read(fd, junk, sizeof junk) > 0)
		;
}

// Incoming frames -----------------------------------------------------------

static int own(struct agent *a, const char *path)
{
	// Nanos has no users: chown succeeds and changes nothing.
	return lchown(path, a->owner, a->owner);
}

static char parent[MAX_PATH];  // the folder that the last file was put in; it is there

// make_parents makes the folders above a path. Files come folder by folder: mostly it is
// the last one's, whose folders need not be looked for again.
static void make_parents(char *path)
{
	size_t len = (size_t)(strrchr(path, '/') ? strrchr(path, '/') - path : 0);
	if (len == strlen(parent) && memcmp(parent, path, len) == 0)
		return;
	memcpy(parent, path, len);
	parent[len] = 0;
	for (char *s = path + 1; (s = strchr(s, '/')) != NULL; s++) {
		*s = 0;
		mkdir(path, 0755);
		*s = '/';
	}
}

static void close_file(const struct file *f)
{
	struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = (time_t)(f->mtime / 1000000000), .tv_nsec = (long)(f->mtime % 1000000000)}};
	if (f->mtime > 0)
		futimens(f->fd, t);
	close(f->fd);
}

// settle_files gives the files that wait their lengths and times.
static void settle_files(struct agent *a)
{
	if (waiting_count > 0)
		a->commit();
	for (size_t i = 0; i < waiting_count; i++) {
		a->set_length(waiting[i].fd, waiting[i].size);
		close_file(&waiting[i]);
	}
	waiting_count = 0;
}

// file_done ends the file that is being put. Where a kernel would go on trying to write it
// to its disk, it is committed while it has no length.
static void file_done(struct agent *a)
{
	file_fd = -1;
	if (a->set_length == NULL || file_now.size == 0) {
		close_file(&file_now);
		return;
	}
	a->set_length(file_now.fd, 0);
	waiting[waiting_count++] = file_now;
	if (waiting_count == MAX_WAITING)
		settle_files(a);
}

// create_file makes an empty file, or empties the one that is there. That may be one that
// waits.
static int create_file(struct agent *a, const char *path)
{
	int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, fd = open(path, flags | O_EXCL, 0600);
	if (fd >= 0 || errno != EEXIST)
		return fd;
	settle_files(a);
	return open(path, flags | O_TRUNC, 0600);
}

// A file frame: u8 kind (f, d, l), u8 owner (0 root, 1 user), u32 mode,
// u64 size, u64 mtime in ns (0 is now), u16 path length, path, and for l the link's
// target.
static int on_file(struct agent *a, const uint8_t *p, size_t n)
{
	static char path[MAX_PATH], target[MAX_PATH];
	if (n < FILE_HEADER || file_fd >= 0)
		return -1;
	uint8_t kind = p[0], owner = p[1];
	mode_t mode = get32(p + 2) & 07777;
	uint64_t size = get64(p + 6);
	uint64_t mtime = get64(p + 14);
	size_t plen = get16(p + 22);
	if (plen == 0 || plen >= sizeof path || n < FILE_HEADER + plen)
		return -1;
	memcpy(path, p + FILE_HEADER, plen);
	path[plen] = 0;
	make_parents(path);
	switch (kind) {
	case KIND_DIR:
		if (mkdir(path, mode) < 0 && errno != EEXIST)
			goto fail;
		chmod(path, mode);
		break;
	case KIND_LINK: {
		size_t tlen = n - FILE_HEADER - plen;
		if (tlen == 0 || tlen >= sizeof target)
			return -1;
		memcpy(target, p + FILE_HEADER + plen, tlen);
		target[tlen] = 0;
		unlink(path);
		if (symlink(target, path) < 0)
			goto fail;
		break;
	}
	case KIND_FILE:
		file_fd = create_file(a, path);
		if (file_fd < 0)
			goto fail;
		fchmod(file_fd, mode);
		file_left = size;
		file_now = (struct file){.fd = file_fd, .size = size, .mtime = mtime};
		if (size == 0)
			file_done(a);
		break;
	default:
		return -1;
	}
	if ((owner == 1 || a->gives_all) && own(a, path) < 0)
		goto fail;
	return 0;
fail:
	dprintf(a->log, "unitask: cannot create %s: %s\n", path, strerror(errno));
	return -1;
}

static int on_data(struct agent *a, const uint8_t *p, size_t n)
{
	if (file_fd < 0 || n > file_left)
		return -1;
	if (write_all(file_fd, p, n) < 0) {
		dprintf(a->log, "unitask: cannot store a file: %s\n", strerror(errno));
		return -1;
	}
	file_left -= n;
	if (file_left == 0)
		file_done(a);
	return 0;
}

static void close_stdin(struct agent *a)
{
	// A terminal has no end: a line that is empty, ended by what stty calls eof, is one.
	if (a->tty && a->in_w >= 0 && write(a->in_w, "\4", 1) < 0)
		dprintf(a->log, "unitask: cannot end the terminal's input: %s\n", strerror(errno));
	if (a->tty)
		return;
	if (a->in_w >= 0)
		close(a->in_w);
	a->in_w = -1;
}

// feed_stdin gives the program as much as its pipe takes.
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
	case FRAME_HAND_OUT:
		if (started || rehearsing || lasting || n != 0)
			return -1;
		hand_out = HAND_ASKED;
		return 0;
	case FRAME_GO_ON:
		if (hand_out != HAND_WAITS || n != 0)
			return -1;
		hand_out = HAND_NO;
		p = (const uint8_t[]){CONTROL_GO_ON};
		if (a->ctl < 0)
			return 0;
		write_all(a->ctl, p, 1);  // who has ended meanwhile is not told
		close(a->ctl);  // the code's process can't be had from here any more
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
		started = 1;
		if (!rehearsing && !lasting)  // that it lasts is said before
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

// receive reads from the host and handles every whole frame; -1 ends the run.
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

// Bell and seed -------------------------------------------------------------

static void tell(struct agent *a, int udp, const char *word)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(AGENT_PORT)};
	to.sin_addr.s_addr = a->gateway;
	sendto(udp, word, 4, 0, (struct sockaddr *)&to, sizeof to);
}

// What a datagram was.
enum { NOISE, SEED, SEED_AGAIN };

// take_datagram handles one datagram. The answer to a seed carries its nonce, so that the host
// knows that this very entropy is in; the host may ask again until it has it.
static int take_datagram(struct agent *a, int udp, int ready)
{
	uint8_t m[128];
	struct sockaddr_in from;
	socklen_t flen = sizeof from;
	ssize_t n = recvfrom(udp, m, sizeof m, 0, (struct sockaddr *)&from, &flen);
	if (n < 0 || from.sin_addr.s_addr != a->gateway || from.sin_port != htons(AGENT_PORT))
		return NOISE;
	if (n == 4 && memcmp(m, WORD_REHEARSE, 4) == 0 && ready && !a->lazy && !started && !lasting) {
		rehearsing = 1;
		sendto(udp, m, 4, 0, (struct sockaddr *)&from, flen);
		return NOISE;
	}
	if (n != 4 + NONCE_SIZE + 8 + ENTROPY_SIZE || memcmp(m, WORD_SEED, 4) != 0)
		return NOISE;
	int again = seeded && memcmp(m + 4, nonce, NONCE_SIZE) == 0;
	if (!again)
		a->seed(m + 20, ENTROPY_SIZE, (int64_t)get64(m + 12));
	memcpy(nonce, m + 4, NONCE_SIZE);
	memcpy(m, WORD_SEEDED, 4);
	sendto(udp, m, 4 + NONCE_SIZE, 0, (struct sockaddr *)&from, flen);
	return again ? SEED_AGAIN : SEED;
}

static int listen_socket(struct agent *a, int type)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(AGENT_PORT)};
	int one = 1, s = socket(AF_INET, type | SOCK_CLOEXEC, 0);
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (s < 0 || bind(s, (struct sockaddr *)&at, sizeof at) < 0 || (type == SOCK_STREAM && listen(s, 1) < 0)) {
		dprintf(a->log, "unitask: cannot listen: %s\n", strerror(errno));
		return -1;
	}
	nonblocking(s, 1);
	return s;
}

// Artifacts -----------------------------------------------------------------

static uint64_t out_left;  // bytes of files that the host still takes

// send_tree sends what is in a folder, whose descriptor it closes: for each thing u8
// kind (f, l, p, s, b, or x for the rest), u32 mode, path; for a file its bytes too. The
// path of the folder below /out is path[..len). -1 when the host is gone.
static int send_tree(int conn, int dir, char *path, size_t len, int depth)
{
	DIR *d = fdopendir(dir);
	struct dirent *e;
	int r = 0;
	if (d == NULL) {
		close(dir);
		return 0;
	}
	while (r == 0 && (e = readdir(d)) != NULL) {
		struct stat st;
		size_t n = strlen(e->d_name);
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (len + 1 + n >= MAX_PATH || fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		memcpy(path + ARTIFACT_HEAD + len, e->d_name, n);
		size_t end = len + n;
		int fd = -1;
		if (S_ISDIR(st.st_mode) && depth < OUT_DEPTH &&
		    (fd = openat(dir, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) >= 0) {
			path[ARTIFACT_HEAD + end] = '/';
			r = send_tree(conn, fd, path, end + 1, depth + 1);
			continue;
		}
		int large = S_ISREG(st.st_mode) && (uint64_t)st.st_size > out_left;
		if (S_ISREG(st.st_mode) && !large &&
		    (fd = openat(dir, e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) >= 0)
			out_left -= (uint64_t)st.st_size;
		path[0] = fd >= 0 ? KIND_FILE : large ? KIND_LARGE : S_ISLNK(st.st_mode) ? KIND_LINK : S_ISFIFO(st.st_mode) ? KIND_PIPE : S_ISSOCK(st.st_mode) ? KIND_SOCKET : KIND_OTHER;
		put32((uint8_t *)path + 1, st.st_mode & 07777);
		out_frame(FRAME_ARTIFACT, path, ARTIFACT_HEAD + end);
		r = out_flush(conn);
		while (r == 0 && fd >= 0 && pump(fd, FRAME_ARTIFACT_DATA) > 0)
			r = out_flush(conn);
		if (fd >= 0)
			close(fd);
	}
	closedir(d);
	return r;
}

// send_layer sends what the code has changed of its root; less where it can't be had, which the host sees.
static int send_layer(struct agent *a, int conn)
{
	char head[ARTIFACT_HEAD + sizeof LAYER_FILE] = {KIND_FILE};
	int fd = a->layer(), r;
	memcpy(head + ARTIFACT_HEAD, LAYER_FILE, sizeof LAYER_FILE);
	out_frame(FRAME_ARTIFACT, head, sizeof head - 1);
	while ((r = out_flush(conn)) == 0 && fd >= 0 && pump(fd, FRAME_ARTIFACT_DATA) > 0)
		;
	if (fd >= 0)
		close(fd);
	out_frame(FRAME_ARTIFACTS_END, "", 0);
	return r < 0 ? r : out_flush(conn);
}

static int send_artifacts(int conn)
{
	static char path[ARTIFACT_HEAD + MAX_PATH];
	int dir = open_out();
	if (dir >= 0 && send_tree(conn, dir, path, 0, 0) < 0)
		return -1;
	out_frame(FRAME_ARTIFACTS_END, "", 0);
	return out_flush(conn);
}

// The loop ------------------------------------------------------------------

// finish sends what is left, then how it ended, and what is in /out if the host asks
// for it. It waits until the host has seen all: the host closes the connection or,
// mostly, kills the machine.
static void finish(struct agent *a, int conn, const struct agent_end *end)
{
	char json[96];
	nonblocking(conn, 0);
	if (out_flush(conn) < 0 || flush_streams(a, conn) < 0)
		return;
	int n = snprintf(json, sizeof json, "{\"code\":%d,\"signal\":%d,\"oom\":%s,\"out\":%s}", end->code, end->signal,
			 end->oom ? "true" : "false", layered || !out_empty() ? "true" : "false");
	out_frame(FRAME_EXIT, json, (size_t)n);
	if (out_flush(conn) < 0)
		return;
	struct timeval wait = {.tv_sec = 5};
	setsockopt(conn, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
	for (;;) {  // frames of standard input may still be under way
		size_t want = HEADER_SIZE + (in_len >= HEADER_SIZE ? get32(in_buf) : 0);
		if (want > sizeof in_buf)
			return;
		if (in_len >= HEADER_SIZE && in_len == want) {
			in_len = 0;
			if (in_buf[4] == FRAME_COLLECT) {
				if (a->freeze)
					a->freeze();
				out_left = want == HEADER_SIZE + 8 ? get64(in_buf + HEADER_SIZE) : UINT64_MAX;
				if ((layered ? send_layer(a, conn) : send_artifacts(conn)) < 0)
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

// forget ends a rehearsal: the agent is as it was before it.
static void forget(struct agent *a, int conn, int udp)
{
	close(conn);
	settle_files(a);
	if (file_fd >= 0)
		close(file_fd);
	file_fd = -1;
	in_len = out_head = out_off = out_len = stdin_off = stdin_len = 0;
	started = seeded = rehearsing = 0;
	hand_out = HAND_NO;
	parent[0] = 0;  // the program has gone, and what it was put in
	out_empty();  // what else an end takes
	tell(a, udp, WORD_FORGOTTEN);
}

// greet sends hello. On another connection of a lasting conversation nothing else is sent until the
// host has said that it is there: what it had given up would take output with it.
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

// lose closes a lasting conversation's connection. Frames that were not sent whole are, on the next
// one; one that was not received whole comes again, if the host still wants it.
static void lose(struct agent *a, int conn)
{
	struct linger now = {.l_onoff = 1};
	setsockopt(conn, SOL_SOCKET, SO_LINGER, &now, sizeof now);
	close(conn);
	in_len = 0;  // of what is owed to stdin all has come
	out_off = out_head;
	out_room();
	settle_files(a);
	if (file_fd >= 0)
		close(file_fd);
	file_fd = -1;
}

// accept_host accepts a connection of the host's. While a conversation lasts the code runs, and can
// connect too.
static int accept_host(struct agent *a, int lsn)
{
	struct sockaddr_in from;
	socklen_t n = sizeof from;
	int conn = accept4(lsn, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (conn >= 0 && from.sin_addr.s_addr != a->gateway) {
		close(conn);
		return -1;
	}
	return conn;
}

// on_program begins to hand out what the code was compiled to, whose length comes.
static void on_program(struct agent *a)
{
	uint8_t size[4];
	if (hand_out != HAND_ASKED || !told || recv(a->ctl, size, sizeof size, MSG_DONTWAIT) != sizeof size || get32(size) > MAX_PROGRAM)
		return;
	hand_left = get32(size);
	hand_out = HAND_UNDER_WAY;
}

// hand_on moves a part of it into the out buffer.
static void hand_on(struct agent *a)
{
	ssize_t n;
	uint8_t *p;
	while (hand_left > 0 && out_room() >= HEADER_SIZE + MAX_CHUNK) {
		p = out_buf + out_len;
		n = recv(a->ctl, p + HEADER_SIZE, hand_left < MAX_CHUNK ? hand_left : MAX_CHUNK, MSG_DONTWAIT);
		if (n < 0)
			return;
		if (n == 0) {  // it has ended amid it
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

// on_word handles a byte of what Node says: R it is ready, S it has started the user's code, W
// it has rehearsed, E and a byte it ends with that exit code, N and a byte it would if
// this were no rehearsal. 1 when it has ended. What it says in two writes may lie in the
// socket as one: a program that is quick has ended before this has heard that it began.
// After the start it may be the user's code that says it, which can end by itself too.
static int on_word(struct agent *a, int conn, int udp, int *ready, struct agent_end *end)
{
	static uint8_t before;  // E or N, whose code comes
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

// there says that the host is.
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

		if (p[UDP].revents && take_datagram(a, udp, ready) == SEED) {
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
			// What the host has said nothing on was an attempt that it had given up.
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
