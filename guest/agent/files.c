// Files that the host puts.
#define _GNU_SOURCE
#include "files.h"
#include "frames.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_WAITING = 64 };  // files for one commit

static int file_fd = -1;  // the file that data frames go to
static uint64_t file_left;
static struct file {
	uint64_t size, mtime;
	int fd;
} file_now, waiting[MAX_WAITING];  // the file being put, and those that wait for a commit
static size_t waiting_count;

static int own(struct agent *a, const char *path)
{
	// Nanos has no users: chown succeeds and changes nothing.
	return lchown(path, a->owner, a->owner);
}

static char parent[MAX_PATH];  // the folder of the last file, which exists

// make_parents makes the folders above a path. Files arrive folder by folder, so make_parents checks
// the folders of consecutive files only once.
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

void settle_files(struct agent *a)
{
	if (waiting_count > 0)
		a->commit();
	for (size_t i = 0; i < waiting_count; i++) {
		a->set_length(waiting[i].fd, waiting[i].size);
		close_file(&waiting[i]);
	}
	waiting_count = 0;
}

// file_done ends the file being put. Nanos would try again and again to write the file to its disk,
// so the file has length 0 until the commit.
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

// create_file makes an empty file, or empties an existing file, which may wait for a commit.
static int create_file(struct agent *a, const char *path)
{
	int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, fd = open(path, flags | O_EXCL, 0600);
	if (fd >= 0 || errno != EEXIST)
		return fd;
	settle_files(a);
	return open(path, flags | O_TRUNC, 0600);
}

int on_file(struct agent *a, const uint8_t *p, size_t n)
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
	struct stat st;
	switch (kind) {
	case KIND_DIR:
		if (mkdir(path, mode) < 0 && errno != EEXIST)
			goto fail;
		if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))  // a container's image may have a link there
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

int on_data(struct agent *a, const uint8_t *p, size_t n)
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

void drop_file(struct agent *a)
{
	settle_files(a);
	if (file_fd >= 0)
		close(file_fd);
	file_fd = -1;
}

void forget_folder(void) { parent[0] = 0; }
