// The kernel's own tracing (Documentation/trace/events.rst). One buffer holds the events that wait
// for the slow serial port. The kernel drops events when the buffer is full, and reports their number.
#define _GNU_SOURCE
#include "../agent/agent.h"
#include "container.h"
#include "init.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"
#define TRACE_BUFFER_KB "256"

int traced;
static pid_t tracer_pid = -1;
static int trace_pipe = -1;

// The text read from the trace is in memory that the tracer and PID 1 share. PID 1 kills the tracer
// with all other processes, and then sends the text that the tracer had not sent yet.
static struct trace_text {
	char text[4096];  // the maximum of one read of trace_pipe
	volatile size_t len, sent;
	volatile int inside;  // the text that was sent ends in the middle of a line
} *trace;

static void trace_send(void)
{
	while (trace->sent < trace->len) {
		const char *from = trace->text + trace->sent, *end = memchr(from, '\n', trace->len - trace->sent);
		size_t n = end ? (size_t)(end - from) + 1 : trace->len - trace->sent, skip = 0;
		if (!trace->inside) {
			while (skip < n && from[skip] == ' ')
				skip++;
			fputs(TRACE_MARK, stdout);
		}
		fwrite(from + skip, 1, n - skip, stdout);
		fflush(stdout);
		trace->inside = !end;
		trace->sent += n;
	}
}

// trace_copy copies the trace to the console until the trace is empty.
static void trace_copy(void)
{
	ssize_t n;
	trace_send();
	while ((n = read(trace_pipe, trace->text, sizeof trace->text)) > 0) {
		trace->sent = 0;
		trace->len = n;
		trace_send();
		trace->len = 0;
	}
}

void trace_begin(void)
{
	char pid[16];
	snprintf(pid, sizeof pid, "%d", getpid());
	put(TRACING "/buffer_size_kb", TRACE_BUFFER_KB);
	put(TRACING "/set_event_pid", pid);
	put(TRACING "/options/event-fork", "1");
	put(TRACING "/events/syscalls/enable", "1");
}

void trace_start(void)
{
	traced = 1;
	must_mount("tracefs", TRACING, "tracefs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=700");
	trace_pipe = open(TRACING "/trace_pipe", O_RDONLY | O_CLOEXEC);
	trace = mmap(NULL, sizeof *trace, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (trace_pipe < 0 || trace == MAP_FAILED)
		die("open the trace");
	tracer_pid = fork();
	if (tracer_pid == 0) {
		keep_only(&trace_pipe, 1);
		trace_copy();
		_exit(0);
	}
}

void trace_end(void)
{
	if (!traced)
		return;
	traced = 0;
	put(TRACING "/events/syscalls/enable", "0");
	kill(tracer_pid, SIGKILL);
	waitpid(tracer_pid, NULL, 0);
	fcntl(trace_pipe, F_SETFL, O_NONBLOCK);
	putchar('\n');  // end the tracer's incomplete line
	trace->inside = 0;
	trace_copy();
	tcdrain(STDOUT_FILENO);
}
