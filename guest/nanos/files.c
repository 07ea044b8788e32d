// Files with Linux's behaviour for root. kept.c stores what Nanos's file system lacks. paths.c checks
// a path before the kernel sees it. special.c generates missing files of /proc and /dev.
#define _GNU_SOURCE
#include "files.h"
#include "nanos.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <unistd.h>

// link_end writes the target of the link at path, relative to dir. It returns false if path is no
// link.
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

// folder_is_there tests whether the folder of a path exists. For a missing folder in a read-only
// place, the kernel reports EACCES instead of ENOENT.
static bool folder_is_there(int dir, const char *path)
{
	char folder[PATH_MAX];
	struct stat st;
	const char *slash = strrchr(path, '/');
	if (slash == NULL || slash == path || (size_t)(slash - path) >= sizeof folder)
		return true;
	memcpy(folder, path, (size_t)(slash - path));
	folder[slash - path] = 0;
	return status(dir, folder, &st, 0) != -ENOENT;
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
			if (link_end(dir, path, ends[tries % 2])) {  // a link to a missing file
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

enum { MOST_WIPED = 64 << 20 };  // bytes of a file with holes, which take memory when they are wiped

// cut changes a file's length. The kernel changes only the length, and the data beyond the new end
// would reappear when the file grows again. So cut wipes that data first.
static long cut(int fd, off_t n)
{
	struct stat st;
	long r = call(SYS_fstat, fd, &st);
	if (r == 0 && S_ISREG(st.st_mode) && st.st_blocks > 0 && st.st_size > n && n >= 0) {
		off_t behind = st.st_size - n;
		if (st.st_blocks * 512 < behind && behind > MOST_WIPED)
			return -EFBIG;
		r = call(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, n, behind);
		if (r < 0 && r != -EBADF)  // EBADF: fd is open for reading only, and ftruncate fails below
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
	if (creates && fd == -EACCES && !folder_is_there(dir, path))
		fd = -ENOENT;
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
// Functions that programs built with an older glibc call.
int __xstat64(int v, const char *path, struct stat64 *st) { (void)v; return stat64(path, st); }
int __lxstat64(int v, const char *path, struct stat64 *st) { (void)v; return lstat64(path, st); }
int __fxstat64(int v, int fd, struct stat64 *st) { (void)v; return fstat64(fd, st); }
int __xstat(int v, const char *path, struct stat *st) { (void)v; return stat(path, st); }
int __lxstat(int v, const char *path, struct stat *st) { (void)v; return lstat(path, st); }
int __fxstat(int v, int fd, struct stat *st) { (void)v; return fstat(fd, st); }

// files_statx is statx, with only the fields that stat has.
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
	x->stx_ctime = x->stx_btime = x->stx_mtime;  // Nanos stores neither the change time nor the creation time
	return 0;
}

// CHECKED defines a call whose only need is a check of its one path.
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
	if (r == -EACCES && on_nanos && !folder_is_there(dir, path))
		r = -ENOENT;
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

// changeable returns 0 if the program may change permissions, owner and times of a file, else an
// errno. The kernel only protects the content of a read-only file.
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

// opendir checks the path itself, because libc opens folders without calling open.
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
