// The stack of a program's first thread, limits, and the refusal of too much memory. The kernel's
// stack has 2 MiB, and a program that exceeds that hangs. So the program runs on a stack like Linux's.
#define _GNU_SOURCE
#include "calls.h"
#include "nanos.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <ucontext.h>

static const rlim64_t usual = 8 << 20, most = 256 << 20;  // bytes: Linux's default limit, and what is reserved

static struct rlimit64 stack_limit;
static char *stack;  // the stack's lower end; memory beyond the limit is not accessible

static struct {
	int (*main)(int, char **, char **);
	int argc, code;
	char **argv, **env;
} program;

static void enter(void) { program.code = program.main(program.argc, program.argv, program.env); }

int nanos_on_stack(int (*main)(int, char **, char **), int argc, char **argv, char **env)
{
	static ucontext_t here, there;
	pthread_attr_t threads;
	char *p = mmap(NULL, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED || mprotect(p + most - usual, usual, PROT_READ | PROT_WRITE) < 0 || getcontext(&there) < 0)
		return main(argc, argv, env);
	if (pthread_attr_init(&threads) == 0 && pthread_attr_setstacksize(&threads, usual) == 0)
		pthread_setattr_default_np(&threads);
	stack = p;
	stack_limit = (struct rlimit64){usual, RLIM64_INFINITY};
	program.main = main;
	program.argc = argc;
	program.argv = argv;
	program.env = env;
	there.uc_stack = (stack_t){.ss_sp = p, .ss_size = most};
	there.uc_link = &here;
	makecontext(&there, enter, 0);
	swapcontext(&here, &there);
	return program.code;
}

// getrlimit64 reports limits that the kernel does not know as unlimited.
int getrlimit64(__rlimit_resource_t what, struct rlimit64 *to)
{
	if (what == RLIMIT_STACK && stack) {
		*to = stack_limit;
		return 0;
	}
	long r = call(SYS_prlimit64, 0, what, NULL, to);
	if (r == -EINVAL && what < RLIM_NLIMITS) {
		*to = (struct rlimit64){RLIM64_INFINITY, RLIM64_INFINITY};
		r = 0;
	}
	return (int)result(r);
}

int setrlimit64(__rlimit_resource_t what, const struct rlimit64 *to)
{
	if (what != RLIMIT_STACK || !stack)
		return (int)result(call(SYS_prlimit64, 0, what, to, NULL));
	if (to->rlim_cur > to->rlim_max)
		return fail(EINVAL);
	rlim64_t open = to->rlim_cur < usual ? usual : to->rlim_cur > most ? most : to->rlim_cur & ~(rlim64_t)0xffff;
	if (mprotect(stack + most - open, open, PROT_READ | PROT_WRITE) < 0)
		return -1;
	stack_limit = *to;
	return 0;
}

int getrlimit(__rlimit_resource_t what, struct rlimit *to) { return getrlimit64(what, (struct rlimit64 *)to); }
int setrlimit(__rlimit_resource_t what, const struct rlimit *to) { return setrlimit64(what, (const struct rlimit64 *)to); }

// too_much refuses an allocation that is larger than the machine's memory, as Linux does. Nanos would
// grant such an allocation, and end the program when the program uses the memory.
static bool too_much(size_t n)
{
	enum { SMALL = 64 << 20 }; // bytes that every machine has
	static _Atomic size_t all;
	struct sysinfo s;
	if (n < SMALL)
		return false;
	if (all == 0 && call(SYS_sysinfo, &s) == 0)
		all = s.totalram;
	if (all == 0 || n <= all)
		return false;
	errno = ENOMEM;
	return true;
}

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n) { return too_much(n) ? NULL : __libc_malloc(n); }
void *realloc(void *p, size_t n) { return too_much(n) ? NULL : __libc_realloc(p, n); }

void *calloc(size_t n, size_t size)
{
	size_t all;
	return !__builtin_mul_overflow(n, size, &all) && too_much(all) ? NULL : __libc_calloc(n, size);
}

void *mmap64(void *at, size_t n, int protection, int flags, int fd, off64_t from)
{
	if (flags & MAP_ANONYMOUS && !(flags & MAP_NORESERVE) && too_much(n))
		return MAP_FAILED;
	return (void *)result(call(SYS_mmap, at, n, protection, flags, fd, from));
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t from) { return mmap64(at, n, protection, flags, fd, from); }
