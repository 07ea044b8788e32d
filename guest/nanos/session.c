// A session on Nanos. Its program (../init/session.c) is a thread beside the agent's thread. The
// process itself is the only interpreter, and its main thread runs the driver
// (../node/addon/session.c). File commands are threads, and there are no other commands.
#define _GNU_SOURCE
#include "calls.h"
#include "nanos.h"

#include "../agent/agent.h"
#include "../init/session.h"
#include "../init/sessioncommand.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	INTERPRETER = 1,  // the interpreter's number; file commands have greater numbers
	MAX_ARGS = 8,  // arguments of a file command
	FILE_STACK = 512 << 10,  // bytes of the stack of a file command's thread
};

static struct session served;
static int streams[STREAMS];  // our ends of the interpreter's streams; its answers arrive on CTL
static int code;  // our end of the pipe for the interpreter's code
static int theirs[2] = {-1, -1};  // the interpreter's ends for code and for answers
static int started;  // the interpreter has started
static int ends;  // threads report their ends here
static void (*interrupt)(bool force);

// file_thread is a running file command.
struct file_thread {
	struct file_thread *next;
	struct file_command command;
	pid_t number;
	int how;  // the command's exit code
	char *argv[MAX_ARGS + 1];
	char text[];
};

static struct file_thread *threads;

static void *run_file(void *arg)
{
	struct file_thread *t = arg;
	pid_t number = t->number;
	t->how = session_file(&t->command);
	close(t->command.in);
	close(t->command.out);
	call(SYS_write, ends, &number, sizeof number);  // the session's descriptor
	return NULL;
}

static int start_interpreter(struct command *c, uint32_t id)
{
	if (started)
		return EBUSY;
	started = 1;
	*c = (struct command){.id = id, .pid = INTERPRETER, .why = -1};
	memcpy(c->fd, streams, sizeof streams);
	c->to[IN].fd = streams[IN];
	c->to[CTL].fd = code;
	return 0;
}

// copy_args copies a command's arguments from the frame.
static struct file_thread *copy_args(char **argv, int n)
{
	size_t size = 0;
	for (int i = 0; i < n; i++)
		size += strlen(argv[i]) + 1;
	struct file_thread *t = calloc(1, sizeof *t + size);
	char *to = t ? t->text : NULL;
	for (int i = 0; t && i < n; i++) {
		t->argv[i] = to;
		to = stpcpy(to, argv[i]) + 1;
	}
	return t;
}

static int start_file(struct command *c, uint32_t id, char **argv, int n)
{
	static pid_t last = INTERPRETER;
	int in[2], out[2];
	if (n > MAX_ARGS)
		return EINVAL;
	struct file_thread *t = copy_args(argv, n);
	if (t == NULL)
		return ENOMEM;
	int failed = pipe2(in, O_CLOEXEC) < 0 ? errno : 0;
	if (!failed && pipe2(out, O_CLOEXEC) < 0) {
		failed = errno;
		close(in[0]);
		close(in[1]);
	}
	if (failed) {
		free(t);
		return failed;
	}
	t->number = ++last;
	t->command = (struct file_command){.argv = t->argv, .in = in[0], .out = out[1]};
	pthread_attr_t how;
	pthread_t thread;
	pthread_attr_init(&how);
	pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&how, FILE_STACK);
	failed = pthread_create(&thread, &how, run_file, t);
	pthread_attr_destroy(&how);
	if (failed) {
		for (int i = 0; i < 2; i++) {
			close(in[i]);
			close(out[i]);
		}
		free(t);
		return failed;
	}
	t->next = threads;
	threads = t;
	*c = (struct command){.id = id, .pid = t->number, .why = -1, .fd = {[IN] = in[1], [CTL] = -1, [OUT] = out[0], [ERR] = -1}};
	c->to[IN].fd = in[1];
	c->to[CTL].fd = -1;
	fcntl(in[1], F_SETFL, O_NONBLOCK);
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	return 0;
}

static int start(struct command *c, uint32_t id, uint8_t *p, size_t n)
{
	static char *dir[2], *argv[MAX_LISTED + 1];
	if (n < EXEC_HEAD || get16(p + 5) == 0)
		return EINVAL;
	const char *end = (char *)p + n;
	char *rest = strings((char *)p + EXEC_HEAD, end, dir, 1);
	if (rest == NULL || strings(rest, end, argv, get16(p + 5)) == NULL)
		return E2BIG;
	if (p[0] & EXEC_CONTROL)
		return start_interpreter(c, id);
	return p[0] & EXEC_BUILTIN ? start_file(c, id, argv, (int)get16(p + 5)) : ENOSYS;
}

// signal_command ends a file command, whatever the signal is. SIGINT interrupts the interpreter's step
// like Ctrl-C, and other signals force the step to end.
static void signal_command(struct command *c, int sig)
{
	if (c->over)
		return;
	if (c->pid == INTERPRETER) {
		if (interrupt)
			interrupt(sig != SIGINT);
		return;
	}
	for (struct file_thread *t = threads; t; t = t->next)
		if (t->number == c->pid)
			t->command.cut = 1;
	for (int i = 0; i < STREAMS; i++) {
		if (c->fd[i] >= 0)
			close(c->fd[i]);
		c->fd[i] = -1;
	}
}

static void ended(void)
{
	pid_t number;
	while (read(served.event, &number, sizeof number) == sizeof number)
		for (struct file_thread **t = &threads; *t; t = &(*t)->next) {
			struct file_thread *is = *t;
			if (is->number != number)
				continue;
			session_ended(number, is->command.cut ? SIGINT << 8 : (uint32_t)is->how);
			*t = is->next;
			free(is);
			break;
		}
}

// end ends the machine. It must not be called in the agent's thread.
static void end(int status)
{
	nanos_end(status, 0);
	_exit(status);
}

static void *serve(void *arg)
{
	(void)arg;
	own_thread = true;
	session_serve(&served);
	return NULL;
}

int nanos_session(struct agent *a)
{
	int in[2], out[2], event[2], codes[2], answers[2];
	uint8_t before[MAX_PATH];
	if (served.end || pipe(in) < 0 || pipe(out) < 0 || pipe(event) < 0 || pipe(codes) < 0 || pipe(answers) < 0)
		return -1;
	// Move the session's ends away from the code's descriptors.
	int *ours[] = {&in[0], &in[1], &out[0], &out[1], &event[0], &event[1], &codes[1], &answers[0]};
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if ((*ours[i] = out_of_the_way(*ours[i])) < 0)
			return -1;
	streams[IN] = a->in_w, streams[OUT] = a->out_r, streams[ERR] = a->err_r, streams[CTL] = answers[0];
	code = codes[1], theirs[0] = codes[0], theirs[1] = answers[1], ends = event[1];
	a->in_w = in[1], a->out_r = out[0], a->err_r = -1;
	int *waited[] = {&in[0], &in[1], &out[0], &event[0], &codes[1], &answers[0]};  // poll waits for these
	for (size_t i = 0; i < sizeof waited / sizeof *waited; i++)
		fcntl(*waited[i], F_SETFL, O_NONBLOCK);
	for (int i = OUT; i <= ERR; i++)  // drop output from before the session
		while (read(streams[i], before, sizeof before) > 0)
			;
	served = (struct session){.in = in[0], .out = out[1], .log = a->log, .event = event[0], .again_ms = a->again_ms,
		.start = start, .signal = signal_command, .ended = ended, .end = end};
	// The new thread takes no signals, like the agent's thread, nor do the threads that it starts.
	pthread_t thread;
	return pthread_create(&thread, NULL, serve, NULL) == 0 ? 0 : -1;
}

int nanos_interprets(int fds[2], void (*how)(bool force))
{
	if (theirs[0] < 0)
		return -1;
	memcpy(fds, theirs, sizeof theirs);
	interrupt = how;
	return 0;
}
