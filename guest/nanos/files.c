// Files as Linux has them for root: permissions, owners and the number of links are
// remembered here, since Nanos's file system has none; a path is looked at before the
// kernel sees it; and what is in /proc and /dev and not in the image is made when it is
// opened.
#define _GNU_SOURCE
#include "calls.h"
#include "nanos.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long status(int dir, const char *path, struct stat *st, int flags) { return call(SYS_newfstatat, dir, path, st, flags); }

// Paths ---------------------------------------------------------------------

// unsafe returns the errno of a path that the kernel must not see, or 0. Of a path that
// does not exist, its check of permissions calls itself once for each missing folder,
// on a stack of 32 KiB. So a long one is looked at in pieces: what is below a folder
// that is missing is missing too.
static int unsafe(int dir, const char *path)
{
	enum { PIECE = 32 }; // parts of a path that may be missing at once
	size_t n = 0, part = 0, parts = 0;
	if (!on_nanos || path == NULL)
		return 0;
	for (; path[n]; n++) {
		if (n >= PATH_MAX - 1)
			return ENAMETOOLONG;
		if (path[n] == '/')
			part = 0;
		else if (part++ == 0)
			parts++;
		if (part > NAME_MAX)
			return ENAMETOOLONG;
	}
	if (parts <= PIECE)
		return 0;
	char head[PATH_MAX];
	struct stat st;
	size_t seen = 0;
	for (size_t i = 0; i < n; i++) {
		head[i] = path[i];
		if (path[i] != '/' && path[i + 1] == '/' && ++seen % PIECE == 0) {
			head[i + 1] = 0;
			long r = status(dir, head, &st, 0);
			if (r < 0)
				return (int)-r;
		}
	}
	return 0;
}

// storable returns 0, or the errno of a name that a file can't have: they are kept as
// UTF-8 text.
static int storable(const char *path)
{
	for (const unsigned char *p = (const unsigned char *)path; on_nanos && p && *p;) {
		int more = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2 : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;
		for (p++; more > 0 && (*p & 0xc0) == 0x80; p++)
			more--;
		if (more != 0) {
			nanos_lacks("names that are not UTF-8 text");
			return EILSEQ;
		}
	}
	return 0;
}

// touched gives the folder that holds path the present time.
static void touched(int dir, const char *path)
{
	struct timespec now[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
	char parent[PATH_MAX];
	size_t n = strlen(path);
	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n > 0 && path[n - 1] != '/')
		n--;
	while (n > 1 && path[n - 1] == '/')
		n--;
	memcpy(parent, n ? path : ".", n ? n : 1);
	parent[n ? n : 1] = 0;
	call(SYS_utimensat, dir, parent, now, 0);
}

// What Nanos does not keep of a file -----------------------------------------

struct kept {
	uint64_t ino; // 0: free
	uint32_t uid, gid, links;
	uint16_t mode; // permissions
};

static struct kept *table; // open addressing, a power of two, never more than half full
static size_t table_size, table_used;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool any_links; // some file has had more than one

static struct kept *slot(uint64_t ino)
{
	size_t i = (size_t)(ino * 0x9e3779b97f4a7c15u >> 20) & (table_size - 1);
	while (table[i].ino != 0 && table[i].ino != ino)
		i = (i + 1) & (table_size - 1);
	return &table[i];
}

// entry returns what is kept of a file, and makes it; NULL when there is no memory. The
// table is locked.
static struct kept *entry(const struct stat *st)
{
	if (2 * (table_used + 1) > table_size) {
		struct kept *was = table;
		size_t n = table_size, size = n ? 2 * n : 1024;
		struct kept *more = calloc(size, sizeof *more);
		if (more == NULL)
			return NULL;
		table = more;
		table_size = size;
		for (size_t i = 0; i < n; i++)
			if (was[i].ino != 0)
				*slot(was[i].ino) = was[i];
		free(was);
	}
	struct kept *k = slot(st->st_ino);
	if (k->ino == 0) {
		table_used++;
		*k = (struct kept){.ino = st->st_ino, .links = 1, .mode = 0755};
	}
	return k;
}

enum { MODE = 1, OWNER = 2, LINKS = 4, FRESH = 8 };

// keep notes permissions, owner or a change of the number of links. FRESH forgets what
// an earlier file with this number had.
static void keep(const struct stat *st, int what, mode_t mode, uid_t uid, gid_t gid, int links)
{
	pthread_mutex_lock(&table_lock);
	struct kept *k = entry(st);
	if (k && what & FRESH)
		*k = (struct kept){.ino = st->st_ino, .links = 1, .mode = 0755};
	if (k && what & MODE)
		k->mode = mode & 07777;
	if (k && what & OWNER) {
		k->uid = uid == (uid_t)-1 ? k->uid : uid;
		k->gid = gid == (gid_t)-1 ? k->gid : gid;
	}
	if (k && what & LINKS)
		k->links += (uint32_t)links;
	pthread_mutex_unlock(&table_lock);
}

static void made(int dir, const char *path, mode_t mode)
{
	struct stat st;
	if (status(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
		keep(&st, FRESH | MODE, mode & ~(mode_t)file_mask(), 0, 0, 0);
}

// mend completes what the kernel said. Its numbers of files are addresses of its own;
// the upper bits are always the same, and would not fit into a double. A folder's links
// are not counted: 1 says so, as btrfs does.
static void mend(struct stat *st)
{
	struct kept k = {.links = 1, .mode = 0755};
	pthread_mutex_lock(&table_lock);
	if (table_size > 0 && slot(st->st_ino)->ino != 0)
		k = *slot(st->st_ino);
	pthread_mutex_unlock(&table_lock);
	switch (st->st_mode & S_IFMT) {
	case S_IFDIR:
		st->st_blksize = 4096;
		k.links = 1;
		break;
	case S_IFREG:
	case S_IFSOCK:
		break;
	case S_IFLNK:
		k.mode = 0777;
		break;
	case S_IFCHR:
		k.mode = 0666;
		break;
	default:
		k.mode = 0600;
	}
	st->st_mode = (st->st_mode & S_IFMT) | k.mode;
	st->st_uid = k.uid;
	st->st_gid = k.gid;
	st->st_nlink = k.links;
	st->st_ino &= (1ull << 48) - 1;
	st->st_ctim = st->st_mtim;
}

static mode_t mask = 022;

int file_mask(void) { return (int)mask; }

mode_t umask(mode_t now)
{
	if (!on_nanos)
		return (mode_t)call(SYS_umask, now);
	return __atomic_exchange_n(&mask, now & 0777, __ATOMIC_SEQ_CST);
}

// Files that are made when they are opened ------------------------------------

// stream returns the descriptor that a path below /dev or /proc names, -1 if none.
static int stream(const char *path)
{
	static const char *const names[] = {"/dev/stdin", "/dev/stdout", "/dev/stderr"};
	static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
	for (int i = 0; i < 3; i++)
		if (strcmp(path, names[i]) == 0)
			return i;
	for (int i = 0; i < 2; i++) {
		size_t n = strlen(folders[i]);
		char *end;
		if (strncmp(path, folders[i], n) != 0 || path[n] < '0' || path[n] > '9')
			continue;
		long fd = strtol(path + n, &end, 10);
		if (*end == 0 && fd < MAX_FD)
			return (int)fd;
	}
	return -1;
}

static bool is_zero(const char *path) { return strcmp(path, "/dev/zero") == 0; }

long memory_in_use(void)
{
	struct sysinfo s;
	if (call(SYS_sysinfo, &s) < 0)
		return 0;
	return (long)((s.totalram - s.freeram) / 1024);
}

// text writes what a file of /proc says now (proc(5)); 0 where it is not one of these.
static int text(const char *path, char *to, size_t size)
{
	struct rusage used = {0};
	struct sysinfo s = {0};
	long ticks[2], kib = memory_in_use(), pages = kib / 4;
	call(SYS_getrusage, RUSAGE_SELF, &used);
	call(SYS_sysinfo, &s);
	ticks[0] = used.ru_utime.tv_sec * 100 + used.ru_utime.tv_usec / 10000;
	ticks[1] = used.ru_stime.tv_sec * 100 + used.ru_stime.tv_usec / 10000;
	pid_t pid = (pid_t)call(SYS_getpid);
	if (strcmp(path, "/proc/self/stat") == 0)
		return snprintf(to, size, "%d (node) R 1 %d %d 0 -1 4194304 0 0 0 0 %ld %ld 0 0 20 0 1 0 0 %ld %ld 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n",
				pid, pid, pid, ticks[0], ticks[1], kib * 1024, pages);
	if (strcmp(path, "/proc/self/statm") == 0)
		return snprintf(to, size, "%ld %ld 0 0 0 %ld 0\n", pages, pages, pages);
	if (strcmp(path, "/proc/self/status") == 0)
		return snprintf(to, size, "Name:\tnode\nUmask:\t%04o\nState:\tR (running)\nTgid:\t%d\nPid:\t%d\nPPid:\t1\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nVmPeak:\t%8ld kB\nVmSize:\t%8ld kB\nVmHWM:\t%8ld kB\nVmRSS:\t%8ld kB\n",
				file_mask(), pid, pid, kib, kib, kib, kib);
	if (strcmp(path, "/proc/uptime") == 0)
		return snprintf(to, size, "%ld.00 0.00\n", (long)s.uptime);
	if (strcmp(path, "/proc/stat") == 0)
		return snprintf(to, size, "cpu  %ld 0 %ld 0 0 0 0 0 0 0\ncpu0 %ld 0 %ld 0 0 0 0 0 0 0\n", ticks[0], ticks[1], ticks[0], ticks[1]);
	return 0;
}

// open_made opens one of these; -1 with errno 0 where the path is none of them.
static int open_made(const char *path, int flags)
{
	char now[1024];
	int ends[2], n, fd = stream(path);
	errno = 0;
	if (fd >= 0 && flags & O_DIRECTORY)
		return fail(ENOTDIR);
	if (fd >= 0)
		return (fd = dup(fd)) < 0 ? fail(ENOENT) : fd;
	if (strcmp(path, "/dev/tty") == 0)
		return fail(ENXIO); // no terminal
	if (is_zero(path)) {
		if ((fd = (int)result(call(SYS_openat, AT_FDCWD, "/dev/null", flags & ~(O_CREAT | O_EXCL), 0))) >= 0)
			descriptors[fd] = (struct descriptor){.zero = true};
		return fd;
	}
	if (strncmp(path, "/proc/", 6) != 0 || (flags & O_ACCMODE) != O_RDONLY || (n = text(path, now, sizeof now)) == 0)
		return -1;
	if (call(SYS_pipe2, ends, O_CLOEXEC) < 0)
		return -1;
	call(SYS_write, ends[1], now, n);
	call(SYS_close, ends[1]);
	descriptors[ends[0]] = (struct descriptor){0};
	return ends[0];
}

// Calls ---------------------------------------------------------------------

// link_end writes where the link at path leads, to be taken from dir; false if it is none.
static bool link_end(int dir, const char *path, char *to)
{
	char target[PATH_MAX];
	long n = call(SYS_readlinkat, dir, path, target, sizeof target - 1);
	const char *slash = strrchr(path, '/');
	size_t head = n > 0 && target[0] != '/' && slash ? (size_t)(slash - path) + 1 : 0;
	if (n <= 0 || head + (size_t)n >= PATH_MAX)
		return false;
	memcpy(to, path, head);
	memcpy(to + head, target, (size_t)n);
	to[head + (size_t)n] = 0;
	return true;
}

static long create(int dir, const char *path, int flags, mode_t mode)
{
	char ends[2][PATH_MAX];
	long fd = -ENOENT;
	for (int tries = 0; tries < 40; tries++) {
		if (!(flags & O_EXCL)) {
			fd = call(SYS_openat, dir, path, flags & ~O_CREAT, 0);
			if (fd != -ENOENT)
				return fd;
			if (link_end(dir, path, ends[tries % 2])) { // of a file that is not there
				if (flags & O_NOFOLLOW)
					return -ELOOP;
				path = ends[tries % 2];
				continue;
			}
		}
		fd = call(SYS_openat, dir, path, flags | O_EXCL | O_NOFOLLOW, mode);
		if (fd >= 0)
			made(dir, path, mode);
		if (fd != -EEXIST || flags & O_EXCL)
			return fd;
	}
	return -ELOOP;
}

enum { MOST_WIPED = 64 << 20 };  // bytes of a file with holes: wiped, they take memory

// cut makes a file shorter, or longer. The kernel changes its length only, and what was
// behind it would come back when the file grows again: so that is wiped before.
static long cut(int fd, off_t n)
{
	struct stat st;
	long r = call(SYS_fstat, fd, &st);
	if (r == 0 && S_ISREG(st.st_mode) && st.st_blocks > 0 && st.st_size > n && n >= 0) {
		off_t behind = st.st_size - n;
		if (st.st_blocks * 512 < behind && behind > MOST_WIPED)
			return -EFBIG;
		r = call(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, n, behind);
		if (r < 0 && r != -EBADF) // it is open for reading: the call below says so
			return r;
	}
	return call(SYS_ftruncate, fd, n);
}

int ftruncate(int fd, off_t n) { return (int)result(on_nanos ? cut(fd, n) : call(SYS_ftruncate, fd, n)); }
int ftruncate64(int fd, off64_t n) { return ftruncate(fd, n); }

int openat64(int dir, const char *path, int flags, ...)
{
	mode_t mode = 0;
	if (flags & (O_CREAT | O_TMPFILE)) {
		va_list args;
		va_start(args, flags);
		mode = va_arg(args, mode_t);
		va_end(args);
	}
	if (!on_nanos)
		return (int)result(call(SYS_openat, dir, path, flags, mode));
	int error = unsafe(dir, path);
	if (error)
		return fail(error);
	if (path[0] == '/') {
		int fd = open_made(path, flags);
		if (fd >= 0 || errno != 0)
			return fd;
	}
	flags &= ~(O_SYNC | O_DSYNC);
	bool creates = flags & O_CREAT && (flags & O_TMPFILE) != O_TMPFILE;
	bool cuts = flags & O_TRUNC && (flags & O_ACCMODE) != O_RDONLY;
	if (cuts)
		flags &= ~O_TRUNC;
	if (creates && (error = storable(path)) != 0)
		return fail(error);
	long fd = creates ? create(dir, path, flags, mode) : call(SYS_openat, dir, path, flags, mode);
	struct descriptor *d = descriptor((int)fd);
	struct stat st;
	if (cuts && fd >= 0 && call(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
		long r = cut((int)fd, 0);
		if (r < 0) {
			call(SYS_close, fd);
			return (int)result(r);
		}
	}
	if (d)
		*d = (struct descriptor){.append = flags & O_APPEND && call(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode)};
	return (int)result(fd);
}

#define WITH_MODE(...) \
	mode_t mode = 0; \
	if (flags & (O_CREAT | O_TMPFILE)) { \
		va_list args; \
		va_start(args, flags); \
		mode = va_arg(args, mode_t); \
		va_end(args); \
	} \
	return openat64(__VA_ARGS__, flags, mode);

int openat(int dir, const char *path, int flags, ...) { WITH_MODE(dir, path) }
int open64(const char *path, int flags, ...) { WITH_MODE(AT_FDCWD, path) }
int open(const char *path, int flags, ...) { WITH_MODE(AT_FDCWD, path) }

// stat_made is a status of one of the files above; -1 where the path is none of them.
static long stat_made(const char *path, struct stat *st)
{
	int fd = stream(path);
	if (fd >= 0)
		return call(SYS_fstat, fd, st) == 0 ? 0 : -ENOENT;
	return is_zero(path) ? status(AT_FDCWD, "/dev/null", st, 0) : -1;
}

static long stat_of(int dir, const char *path, struct stat *st, int flags)
{
	int error = unsafe(dir, path);
	if (error)
		return -error;
	long r = on_nanos && path && path[0] == '/' && !(flags & AT_SYMLINK_NOFOLLOW) ? stat_made(path, st) : -1;
	if (r == -1)
		r = status(dir, path, st, flags);
	if (r == 0 && on_nanos)
		mend(st);
	return r;
}

int fstatat64(int dir, const char *path, struct stat64 *st, int flags) { return (int)result(stat_of(dir, path, (struct stat *)st, flags)); }
int fstatat(int dir, const char *path, struct stat *st, int flags) { return (int)result(stat_of(dir, path, st, flags)); }
int stat64(const char *path, struct stat64 *st) { return fstatat64(AT_FDCWD, path, st, 0); }
int stat(const char *path, struct stat *st) { return fstatat(AT_FDCWD, path, st, 0); }
int lstat64(const char *path, struct stat64 *st) { return fstatat64(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW); }
int lstat(const char *path, struct stat *st) { return fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW); }

int fstat(int fd, struct stat *st)
{
	long r = call(SYS_fstat, fd, st);
	struct descriptor *d = descriptor(fd);
	if (r == 0 && d) {
		mend(st);
		if (d->socket)
			st->st_mode = S_IFSOCK | 0777;
	}
	return (int)result(r);
}

int fstat64(int fd, struct stat64 *st) { return fstat(fd, (struct stat *)st); }
// What programs call that were linked with an older glibc.
int __xstat64(int v, const char *path, struct stat64 *st) { (void)v; return stat64(path, st); }
int __lxstat64(int v, const char *path, struct stat64 *st) { (void)v; return lstat64(path, st); }
int __fxstat64(int v, int fd, struct stat64 *st) { (void)v; return fstat64(fd, st); }
int __xstat(int v, const char *path, struct stat *st) { (void)v; return stat(path, st); }
int __lxstat(int v, const char *path, struct stat *st) { (void)v; return lstat(path, st); }
int __fxstat(int v, int fd, struct stat *st) { (void)v; return fstat(fd, st); }

// files_statx is statx, in which the fields that matter are those of stat.
long files_statx(int dir, const char *path, int flags, unsigned mask_, struct statx *x)
{
	struct stat st;
	long r;
	if (flags & AT_EMPTY_PATH && path && *path == 0 && dir != AT_FDCWD)
		r = fstat(dir, &st) < 0 ? -errno : 0;
	else
		r = stat_of(dir, path, &st, flags & AT_SYMLINK_NOFOLLOW);
	if (r < 0)
		return r;
	*x = (struct statx){
		.stx_mask = STATX_BASIC_STATS | (mask_ & STATX_BTIME),
		.stx_blksize = (uint32_t)st.st_blksize,
		.stx_nlink = (uint32_t)st.st_nlink,
		.stx_uid = st.st_uid,
		.stx_gid = st.st_gid,
		.stx_mode = (uint16_t)st.st_mode,
		.stx_ino = st.st_ino,
		.stx_size = (uint64_t)st.st_size,
		.stx_blocks = (uint64_t)st.st_blocks,
		.stx_atime = {.tv_sec = st.st_atim.tv_sec, .tv_nsec = (uint32_t)st.st_atim.tv_nsec},
		.stx_mtime = {.tv_sec = st.st_mtim.tv_sec, .tv_nsec = (uint32_t)st.st_mtim.tv_nsec},
		.stx_rdev_major = (uint32_t)(st.st_rdev >> 8 & 0xfff),
		.stx_rdev_minor = (uint32_t)(st.st_rdev & 0xff),
	};
	x->stx_ctime = x->stx_btime = x->stx_mtime; // nobody notes when it was made
	return 0;
}

// A call with one path that is only looked at before.
#define CHECKED(type, name, parameters, dir, path, ...) \
	type name parameters \
	{ \
		int error = unsafe(dir, path); \
		return error ? fail(error) : (type)result(call(__VA_ARGS__)); \
	}

CHECKED(ssize_t, readlink, (const char *path, char *to, size_t n), AT_FDCWD, path, SYS_readlinkat, AT_FDCWD, path, to, n)
CHECKED(ssize_t, readlinkat, (int dir, const char *path, char *to, size_t n), dir, path, SYS_readlinkat, dir, path, to, n)
CHECKED(int, statfs64, (const char *path, struct statfs64 *st), AT_FDCWD, path, SYS_statfs, path, st)
CHECKED(int, statfs, (const char *path, struct statfs *st), AT_FDCWD, path, SYS_statfs, path, st)
CHECKED(int, inotify_add_watch, (int fd, const char *path, uint32_t events), AT_FDCWD, path, SYS_inotify_add_watch, fd, path, events)

int truncate(const char *path, off_t n)
{
	if (!on_nanos)
		return (int)result(call(SYS_truncate, path, n));
	int fd = open64(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	long r = cut(fd, n);
	call(SYS_close, fd);
	return (int)result(r);
}

int truncate64(const char *path, off64_t n) { return truncate(path, n); }

int symlinkat(const char *target, int dir, const char *path)
{
	int error = unsafe(dir, path);
	if (error == 0)
		error = storable(path);
	return error ? fail(error) : (int)result(call(SYS_symlinkat, target, dir, path));
}

int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int faccessat(int dir, const char *path, int mode, int flags)
{
	struct stat st;
	int error = unsafe(dir, path);
	if (error)
		return fail(error);
	if (on_nanos && path[0] == '/' && stat_made(path, &st) == 0)
		return mode & X_OK ? fail(EACCES) : 0;
	long r = call(SYS_faccessat, dir, path, mode, flags);
	if (r == 0 && on_nanos && mode & X_OK && stat_of(dir, path, &st, 0) == 0 && S_ISREG(st.st_mode) && !(st.st_mode & 0111))
		r = -EACCES;
	return (int)result(r);
}

int access(const char *path, int mode) { return faccessat(AT_FDCWD, path, mode, 0); }

int chdir(const char *path)
{
	struct stat st;
	int error = unsafe(AT_FDCWD, path);
	if (error)
		return fail(error);
	long r = call(SYS_chdir, path);
	if (r == -ENOENT && on_nanos && status(AT_FDCWD, path, &st, 0) == 0)
		r = -ENOTDIR;
	return (int)result(r);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
	int error = unsafe(dir, path);
	if (error == 0)
		error = storable(path);
	if (error)
		return fail(error);
	long r = call(SYS_mkdirat, dir, path, mode);
	if (r == 0 && on_nanos)
		made(dir, path, mode);
	return (int)result(r);
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int dir, const char *path, int flags)
{
	struct stat st;
	int error = unsafe(dir, path);
	if (error)
		return fail(error);
	bool counted = on_nanos && any_links && status(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
	long r = call(SYS_unlinkat, dir, path, flags);
	if (r == 0 && counted)
		keep(&st, LINKS, 0, 0, 0, -1);
	if (r == 0 && on_nanos)
		touched(dir, path);
	return (int)result(r);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int remove(const char *path)
{
	int r = unlink(path);
	return r < 0 && errno == EISDIR ? rmdir(path) : r;
}

int linkat(int from, const char *old, int dir, const char *path, int flags)
{
	struct stat st;
	int error = unsafe(from, old);
	if (error == 0)
		error = unsafe(dir, path);
	if (error == 0)
		error = storable(path);
	if (error)
		return fail(error);
	long r = call(SYS_linkat, from, old, dir, path, flags);
	if (r == 0 && on_nanos && status(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		any_links = true;
		keep(&st, LINKS, 0, 0, 0, 1);
	}
	return (int)result(r);
}

int link(const char *old, const char *path) { return linkat(AT_FDCWD, old, AT_FDCWD, path, 0); }

int renameat(int from, const char *old, int dir, const char *path)
{
	int error = unsafe(from, old);
	if (error == 0)
		error = unsafe(dir, path);
	if (error == 0)
		error = storable(path);
	if (error)
		return fail(error);
	long r = call(SYS_renameat2, from, old, dir, path, 0);
	if (r == 0 && on_nanos) {
		touched(from, old);
		touched(dir, path);
	}
	return (int)result(r);
}

int rename(const char *old, const char *path) { return renameat(AT_FDCWD, old, AT_FDCWD, path); }

// changeable says whether permissions, owner or times of a file may be changed: the
// kernel, which has no such check, lets read-only files be written no more. 0, or an errno.
static int changeable(int dir, const char *path)
{
	int error = unsafe(dir, path);
	if (error || !on_nanos)
		return error;
	long r = call(SYS_faccessat, dir, path, W_OK);
	return r == -EACCES ? EPERM : r < 0 && r != -ENOENT ? (int)-r : 0;
}

static int set_mode(int dir, const char *path, mode_t mode, int flags)
{
	struct stat st;
	int error = changeable(dir, path);
	if (error)
		return fail(error);
	if (!on_nanos)
		return (int)result(call(SYS_fchmodat, dir, path, mode));
	long r = status(dir, path, &st, flags & AT_SYMLINK_NOFOLLOW);
	if (r == 0)
		keep(&st, MODE, mode, 0, 0, 0);
	return (int)result(r);
}

int chmod(const char *path, mode_t mode) { return set_mode(AT_FDCWD, path, mode, 0); }
int fchmodat(int dir, const char *path, mode_t mode, int flags) { return set_mode(dir, path, mode, flags); }

int fchmod(int fd, mode_t mode)
{
	struct stat st;
	if (!on_nanos)
		return (int)result(call(SYS_fchmod, fd, mode));
	long r = call(SYS_fstat, fd, &st);
	if (r == 0)
		keep(&st, MODE, mode, 0, 0, 0);
	return (int)result(r);
}

int fchownat(int dir, const char *path, uid_t uid, gid_t gid, int flags)
{
	struct stat st;
	int error = changeable(dir, path);
	if (error)
		return fail(error);
	if (!on_nanos)
		return (int)result(call(SYS_fchownat, dir, path, uid, gid, flags));
	long r = status(dir, path, &st, flags & AT_SYMLINK_NOFOLLOW);
	if (r == 0)
		keep(&st, OWNER, 0, uid, gid, 0);
	return (int)result(r);
}

int chown(const char *path, uid_t uid, gid_t gid) { return fchownat(AT_FDCWD, path, uid, gid, 0); }
int lchown(const char *path, uid_t uid, gid_t gid) { return fchownat(AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW); }

int fchown(int fd, uid_t uid, gid_t gid)
{
	struct stat st;
	if (!on_nanos)
		return (int)result(call(SYS_fchown, fd, uid, gid));
	long r = call(SYS_fstat, fd, &st);
	if (r == 0)
		keep(&st, OWNER, 0, uid, gid, 0);
	return (int)result(r);
}

int utimensat(int dir, const char *path, const struct timespec times[2], int flags)
{
	int error = changeable(dir, path);
	return error ? fail(error) : (int)result(call(SYS_utimensat, dir, path, times, flags));
}

int futimens(int fd, const struct timespec times[2]) { return (int)result(call(SYS_utimensat, fd, NULL, times, 0)); }

int utimes(const char *path, const struct timeval t[2])
{
	struct timespec s[2];
	for (int i = 0; t && i < 2; i++)
		s[i] = (struct timespec){t[i].tv_sec, t[i].tv_usec * 1000};
	return utimensat(AT_FDCWD, path, t ? s : NULL, 0);
}

// libc opens folders by itself.
DIR *opendir(const char *path)
{
	static DIR *(*next)(const char *);
	int error = unsafe(AT_FDCWD, path);
	if (error) {
		errno = error;
		return NULL;
	}
	if (next == NULL)
		next = (DIR * (*)(const char *))dlsym(RTLD_NEXT, "opendir");
	return next(path);
}

int scandir64(const char *path, struct dirent64 ***list, int (*keeps)(const struct dirent64 *), int (*compare)(const struct dirent64 **, const struct dirent64 **))
{
	static int (*next)(const char *, struct dirent64 ***, int (*)(const struct dirent64 *), int (*)(const struct dirent64 **, const struct dirent64 **));
	int error = unsafe(AT_FDCWD, path);
	if (error)
		return fail(error);
	if (next == NULL)
		next = (int (*)(const char *, struct dirent64 ***, int (*)(const struct dirent64 *), int (*)(const struct dirent64 **, const struct dirent64 **)))dlsym(RTLD_NEXT, "scandir64");
	return next(path, list, keeps, compare);
}
