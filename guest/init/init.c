// PID 1 of the linux guest: sets the machine up, runs the language's program as an unprivileged user,
// and serves the conversation (../agent/agent.c).
//
// PID 1 is linked statically and is the only program of the initramfs. The root filesystem stays the
// initramfs, a tmpfs in which any path can be created. Bind mounts of the read-only disk provide what
// the language needs.
#define _GNU_SOURCE
#include "../agent/agent.h"
#include "container.h"
#include "init.h"
#include "session.h"
#include "sessionmore.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <net/if.h>
#include <net/route.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <sys/io.h>
#endif
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { CTL_FD = 3 };

static pid_t node_pid = -1;
static uid_t owner = USER_ID;  // the code's user
static int child_in, child_out, child_err, child_ctl;  // the program's ends of its streams, until it runs
static char cmdline[4096];
static unsigned long long oom_before;

// die reports on the console, which the host stores, and stops the machine.
void die(const char *what)
{
	printf("unitask: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	sync();
#if defined(__x86_64__)
	if (ioperm(DEBUG_EXIT_PORT, 4, 1) == 0)
		outl(EXIT_UNKNOWN, DEBUG_EXIT_PORT);
#endif
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}

static void stop(int status)
{
#if defined(__x86_64__)
	if (ioperm(DEBUG_EXIT_PORT, 4, 1) == 0)
		outl((unsigned)status, DEBUG_EXIT_PORT);
#endif
	(void)status;
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}

void must_mount(const char *src, const char *dst, const char *type, unsigned long flags, const char *opt)
{
	mkdir(dst, 0755);
	if (mount(src, dst, type, flags, opt) < 0)
		die(dst);
}

void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd >= 0) {
		ssize_t n = write(fd, text, strlen(text));
		(void)n;
		close(fd);
	}
}

static void interface_up(int s, const char *name, const char *ip, const char *mask)
{
	struct ifreq r = {0};
	struct sockaddr_in *a = (struct sockaddr_in *)&r.ifr_addr;
	strncpy(r.ifr_name, name, IFNAMSIZ - 1);
	a->sin_family = AF_INET;
	inet_pton(AF_INET, ip, &a->sin_addr);
	if (ioctl(s, SIOCSIFADDR, &r) < 0)
		die(name);
	inet_pton(AF_INET, mask, &a->sin_addr);
	ioctl(s, SIOCSIFNETMASK, &r);
	r.ifr_flags = IFF_UP | IFF_RUNNING;
	if (ioctl(s, SIOCSIFFLAGS, &r) < 0)
		die(name);
}

static void network(void)
{
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	put("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "0");  // only the loopback has IPv6
	interface_up(s, "lo", "127.0.0.1", "255.0.0.0");
	interface_up(s, "eth0", GUEST_IP, NETMASK);
	struct rtentry rt = {0};
	struct sockaddr_in *gw = (struct sockaddr_in *)&rt.rt_gateway;
	gw->sin_family = AF_INET;
	inet_pton(AF_INET, GATEWAY_IP, &gw->sin_addr);
	rt.rt_dst.sa_family = rt.rt_genmask.sa_family = AF_INET;
	rt.rt_flags = RTF_UP | RTF_GATEWAY;
	if (ioctl(s, SIOCADDRT, &rt) < 0)
		die("default route");
	close(s);
	put("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
	sethostname(HOSTNAME, strlen(HOSTNAME));
}

static unsigned long long oom_kills(void)
{
	static char text[32 << 10]; // the file has about 4 KiB
	size_t n = 0;
	int fd = open("/proc/vmstat", O_RDONLY | O_CLOEXEC);
	for (ssize_t r = 1; fd >= 0 && r > 0 && n < sizeof text - 1; n += r > 0 ? (size_t)r : 0)
		r = read(fd, text + n, sizeof text - 1 - n);
	text[n] = 0;
	close(fd);
	const char *at = strstr(text, "\noom_kill ");
	return at ? strtoull(at + strlen("\noom_kill "), NULL, 10) : 0;
}

static void seed(const uint8_t *entropy, size_t n, int64_t now_ns)
{
	struct timespec ts = {.tv_sec = now_ns / 1000000000, .tv_nsec = now_ns % 1000000000};
	clock_settime(CLOCK_REALTIME, &ts);
	struct {
		int entropy_count, buf_size;
		uint8_t buf[ENTROPY_SIZE];
	} pool = {.entropy_count = (int)n * 8, .buf_size = (int)n};
	memcpy(pool.buf, entropy, n);
	int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
	if (fd < 0 || ioctl(fd, RNDADDENTROPY, &pool) < 0 || ioctl(fd, RNDRESEEDCRNG) < 0)
		die("seed");
	close(fd);
}

static const char *kernel_arg(const char *name)
{
	static char value[256];
	char *p = strstr(cmdline, name);
	if (p == NULL || sscanf(p + strlen(name), "%255s", value) != 1)
		return NULL;
	return value;
}

// with_rights gives the calling process the rights of the code's user, or those of root if the flags
// say so.
static void with_rights(int flags)
{
	put("/proc/self/oom_score_adj", "0");
	struct rlimit core = {0, 0}, procs = {4096, 4096}, files = {65536, 65536};
	setrlimit(RLIMIT_CORE, &core);
	setrlimit(RLIMIT_NPROC, &procs);
	setrlimit(RLIMIT_NOFILE, &files);
	if (!(flags & EXEC_MAY_ROOT))
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (!(flags & EXEC_ROOT) && (setgid(USER_ID) < 0 || setuid(USER_ID) < 0))
		_exit(EXIT_UNKNOWN);
}

static void as_user(void) { with_rights(0); }

// EXEC_FILE of the image says what to start (image/payload.go writes it): a path, the arguments and
// the environment. Each string ends in a NUL, and each list in another NUL.
enum { EXEC_SIZE = 4096, LIST_SIZE = 2 * MAX_STRINGS + 2 };

static char exec_text[EXEC_SIZE], process_text[MAX_PROCESS + 4];
static char *exec_path, *exec_args[LIST_SIZE], *exec_env[LIST_SIZE];

// take_list appends the strings of a list to another list and returns the text after it.
static char *take_list(char *text, char **list)
{
	size_t n = 0, taken = 0;
	while (list[n])
		n++;
	for (; *text; text += strlen(text) + 1)
		if (taken++ < MAX_STRINGS)
			list[n++] = text;
	return text + 1;
}

// process stores the description of the process that spawn will start.
static int process(struct agent *a, const uint8_t *p, size_t n)
{
	(void)a;
	if (n == 0 || n > MAX_PROCESS)
		return -1;
	memset(process_text, 0, sizeof process_text);
	memcpy(process_text, p, n);
	return 0;
}

static int session;   // spawn starts a session's program
static int tty = -1;  // the code's end of its terminal

// terminal creates a terminal, or changes its size. The agent's end of it replaces the pipes. The
// code's end stays open here: otherwise the terminal would hang up whenever no process uses it.
static int terminal(struct agent *a, unsigned columns, unsigned rows)
{
	struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = (unsigned short)rows};
	if (tty < 0) {
		int unlocked = 0, number = -1, end = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
		int in = fcntl(end, F_DUPFD_CLOEXEC, 3);
		if (in < 0 || ioctl(end, TIOCSPTLCK, &unlocked) < 0 || ioctl(end, TIOCGPTN, &number) < 0 || number != 0)
			return -1;
		tty = open(TERMINAL, O_RDWR | O_NOCTTY | O_CLOEXEC);
		struct termios t;
		if (tty < 0 || fchown(tty, a->owner, a->owner) < 0 || tcgetattr(tty, &t) < 0)
			return -1;
		t.c_iflag |= IUTF8;
		tcsetattr(tty, TCSANOW, &t);
		close(a->in_w);
		close(a->out_r);
		a->in_w = in;
		a->out_r = end;
		a->tty = 1;
	}
	return ioctl(tty, TIOCSWINSZ, &size);
}

// in_session makes spawn start a session's program.
static int in_session(struct agent *a)
{
	session = a->lazy;
	return session ? 0 : -1;
}

static void read_exec(void)
{
	int fd = open(EXEC_FILE, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, exec_text, sizeof exec_text - 4);
	if (n <= 0)
		die(EXEC_FILE);
	close(fd);
	exec_path = exec_text;
	// The machine's own argument, from the kernel's command line, comes before the others.
	const char *own = kernel_arg(BOOT_ARG);
	char *env = take_list(exec_path + strlen(exec_path) + 1, exec_args);
	if (own) {
		memmove(exec_args + 2, exec_args + 1, MAX_STRINGS * sizeof *exec_args);
		exec_args[1] = strdup(own);
	}
	take_list(env, exec_env);
}

// spawn starts the program, which then waits for the start.
static void spawn(struct agent *a)
{
	(void)a;
	pid_t pid = container ? container_fork() : fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		sigset_t none;
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		processes_join();
		int fds[4] = {child_in, child_out, child_err, child_ctl};
		for (int i = 0; i < 3 && tty >= 0; i++)
			fds[i] = tty;
		for (int i = 0; i < 4; i++)
			fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 16);
		for (int i = 0; i < 4; i++)
			dup2(fds[i], i);
		if (!container)  // a container's start needs some descriptors, which close on exec
			syscall(SYS_close_range, 4, ~0U, 0);
		setsid();
		if (tty >= 0)
			ioctl(STDIN_FILENO, TIOCSCTTY, 0);
		if (traced)
			trace_begin();
		if (session) {
			// The program of a session takes no start: each command brings its own.
			ssize_t n = write(CTL_FD, (char[]){CONTROL_STARTED}, 1);
			(void)n;
			if (container) {
				container_inside();
				syscall(SYS_close_range, 4, ~0U, 0);
			}
			session_run(container ? container_rights : with_rights, owner);
		}
		if (container)
			container_exec(exec_args, exec_env);
		as_user();
		if (process_text[0]) {
			// The arguments of the process frame come before the last argument, which is the program.
			size_t last = 0;
			while (exec_args[last + 1])
				last++;
			char *program = exec_args[last];
			exec_args[last] = NULL;
			char *env = take_list(process_text + strlen(process_text) + 1, exec_args);
			while (exec_args[last])
				last++;
			exec_args[last] = program;
			take_list(env, exec_env);
		}
		if (chdir(process_text[0] ? process_text : HOME_DIR) < 0 && chdir(HOME_DIR) < 0)
			_exit(EXIT_UNKNOWN);
		execve(exec_path, exec_args, exec_env);
		_exit(EXIT_NO_EXEC);
	}
	node_pid = pid;
	close(child_in);
	close(child_out);
	close(child_err);
	close(child_ctl);
}

// relay starts the relay as nobody, in a separate process.
static int relay(struct agent *a, const uint16_t *ports, size_t n)
{
	if (relay_listen(ports, n) < 0)
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		if (setgid(NOBODY_ID) < 0 || setuid(NOBODY_ID) < 0)
			_exit(EXIT_UNKNOWN);
		relay_run(a->gateway);
	}
	return pid < 0 ? -1 : 0;
}

static void freeze(void)
{
	kill(-1, SIGSTOP);
	trace_end();
}

// settle sends the complete trace to the console before the machine ends.
static void settle(void)
{
	if (traced)
		freeze();
}

// ended reaps every child. The run is over when the program itself has ended.
static int ended(struct agent *a, struct agent_end *end)
{
	struct signalfd_siginfo info;
	ssize_t n = read(a->event, &info, sizeof info);
	(void)n;
	int status, over = 0;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid != node_pid)
			continue;
		over = 1;
		end->code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
		end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	}
	if (over) {
		end->oom = oom_kills() > oom_before;
		kill(-1, SIGKILL);  // the code's remaining processes
		trace_end();
	}
	return over;
}

static void pipe_pair(int fds[2])
{
	// The user owns the pipe, so that the code can open /dev/stdout and similar files.
	if (pipe2(fds, O_CLOEXEC) < 0 || fchown(fds[0], owner, owner) < 0)
		die("pipe");
}

// direct runs one script with its output on the console, and stops the machine. Benchmarks compare
// with this bare boot.
static void direct(const char *script)
{
	pid_t pid = fork();
	if (pid == 0) {
		as_user();
		char *argv[] = {exec_args[0], (char *)script, NULL};
		execve(exec_path, argv, exec_env);
		_exit(EXIT_NO_EXEC);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	stop(WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	if (getpid() != 1)  // a copy of this program, which session_more has installed
		return sudo(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	umask(022);
	signal(SIGPIPE, SIG_IGN);
	processes_begin();  // before a read-only mount of the hierarchy makes the whole hierarchy read-only
	filesystems();
	chmod("/", 0755);
	int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, cmdline, sizeof cmdline - 1);
	cmdline[n > 0 ? n : 0] = 0;
	close(fd);
	network();
	put("/proc/sys/vm/overcommit_memory", "1");
	put("/proc/sys/kernel/printk", "1");
	put("/proc/self/oom_score_adj", "-1000");
	read_exec();
	if (container) {
		owner = container_owner;
		container_enter(exec_path);
	}
	const char *script = kernel_arg(BOOT_DIRECT);
	if (script)
		direct(script);

	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	int in[2], out[2], err[2], ctl[2];
	pipe_pair(in);
	pipe_pair(out);
	pipe_pair(err);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ctl) < 0)
		die("socketpair");
	child_in = in[0], child_out = out[1], child_err = err[1], child_ctl = ctl[1];
	struct agent a = {
		.kernel = KERNEL_LINUX,
		.gateway = inet_addr(GATEWAY_IP),
		.in_w = in[1],
		.out_r = out[0],
		.err_r = err[0],
		.ctl = ctl[0],
		.event = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK),
		.lazy = strstr(cmdline, BOOT_LAZY) != NULL,
		.log = STDOUT_FILENO,
		.owner = owner,
		.gives_all = container,  // an image's user may have any id, and can change everything
		.seed = seed,
		.spawn = spawn,
		.process = process,
		.terminal = terminal,
		.session = in_session,
		.relay = relay,
		.freeze = freeze,
		.layer = container ? container_layer : NULL,
		.processes = processes_limit,
		.refused = processes_refused,
		.reset = reset_connections,
		.settle = settle,
		.ended = ended,
	};
	if (strstr(cmdline, BOOT_TRACE))
		trace_start();
	oom_before = oom_kills();
	if (!a.lazy)
		spawn(&a);
	struct agent_end end = {0};
	if (agent_run(&a, &end) < 0) {
		printf("unitask: node ended before its start: code %d, signal %d\n", end.code, end.signal);
		fflush(stdout);
		stop(EXIT_UNKNOWN);
	}
	stop(end.signal ? EXIT_SIGNAL + end.signal : end.code);
}
