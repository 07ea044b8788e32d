// Prints changes below a folder for the host. A change is its letter (WATCH_CREATE and similar), the
// path relative to the folder, and a NUL. Changes mean the same as in Go's fsnotify. A new folder is
// read after its watch began, so that no file in it is missed. A file may be reported twice.
#define _GNU_SOURCE
#include "sessionmore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

enum {
	EVENTS = IN_CREATE | IN_MOVED_TO | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_ATTRIB,
	SELF = IN_DELETE_SELF | IN_MOVE_SELF,
	MAX_LEVELS = 64,
	QUEUE = 64 << 10,
};

// watched is a folder with a watch. inotify's numbers rise, so the list is ordered by them.
static struct watched {
	int number;
	char *path;  // relative to the first folder, whose path is ""
} *all;

static size_t count;
static int queue = -1;
static char top[MAX_PATH];

static int report(char kind, const char *dir, const char *name)
{
	char text[2 * MAX_PATH + 2];
	int n = snprintf(text, sizeof text, "%c%s%s%s", kind, dir, *dir && *name ? "/" : "", name);
	return n < (int)sizeof text ? flow_out(text, (size_t)n + 1) : 0;
}

static int compare(const void *a, const void *b)
{
	const struct watched *x = a, *y = b;
	return x->number < y->number ? -1 : x->number > y->number;
}

static struct watched *find(int number)
{
	struct watched key = {.number = number};
	return count ? bsearch(&key, all, count, sizeof key, compare) : NULL;
}

static void forget(struct watched *w)
{
	free(w->path);
	memmove(w, w + 1, (size_t)(all + --count - w) * sizeof *w);
}

// forget_below ends the watches of a folder that was moved, and of those below it.
static void forget_below(const char *path)
{
	size_t len = strlen(path);
	for (size_t i = count; i-- > 0;) {
		struct watched *w = &all[i];
		if (strncmp(w->path, path, len) == 0 && (w->path[len] == 0 || w->path[len] == '/')) {
			inotify_rm_watch(queue, w->number);
			forget(w);
		}
	}
}

// add begins a folder's watch. It returns 0 or an errno.
static int add(const char *path)
{
	char full[MAX_PATH];
	int flags = *path ? EVENTS | IN_ONLYDIR | IN_DONT_FOLLOW : EVENTS | SELF | IN_ONLYDIR;
	if ((size_t)snprintf(full, sizeof full, "%s/%s", top, path) >= sizeof full)
		return ENAMETOOLONG;
	int number = inotify_add_watch(queue, full, (uint32_t)flags);
	if (number < 0)
		return errno;
	struct watched *w = find(number);
	char *copy = strdup(path);
	if (copy == NULL || (w == NULL && count == MAX_WATCHES)) {
		free(copy);
		if (w == NULL)
			inotify_rm_watch(queue, number);
		return copy ? ENOSPC : ENOMEM;
	}
	if (w) {
		free(w->path);
		w->path = copy;
		return 0;
	}
	if (count % 64 == 0) {
		struct watched *more = realloc(all, (count + 64) * sizeof *all);
		if (more == NULL)
			return ENOMEM;
		all = more;
	}
	all[count++] = (struct watched){number, copy};
	if (count > 1 && all[count - 2].number > number)  // the numbers began again at 1
		qsort(all, count, sizeof *all, compare);
	return 0;
}

// add_below begins the watches of a folder and of the folders below it, and returns 0 or an errno.
// With tell, it reports their entries as new.
static int add_below(const char *path, int tell, int levels)
{
	char full[MAX_PATH], sub[MAX_PATH];
	int failed = add(path);
	if (failed)
		return failed;
	if ((size_t)snprintf(full, sizeof full, "%s/%s", top, path) >= sizeof full)
		return ENAMETOOLONG;
	int fd = open(full, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (*path ? O_NOFOLLOW : 0));
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	for (struct dirent *e; d && !failed && (e = readdir(d)) != NULL;) {
		struct stat st;
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (tell && (failed = report(WATCH_CREATE, path, e->d_name)))
			break;
		if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode) ||
		    (size_t)snprintf(sub, sizeof sub, "%s%s%s", path, *path ? "/" : "", e->d_name) >= sizeof sub)
			continue;
		failed = levels > 0 ? add_below(sub, tell, levels - 1) : ENOSPC;
		if (failed == ENOENT || failed == ENOTDIR || failed == EACCES)  // gone, or the user may not read it
			failed = 0;
	}
	if (d)
		closedir(d);
	return failed;
}

static int on_event(const struct inotify_event *e, int recursive)
{
	static const struct { uint32_t mask; char kind; } kinds[] = {
		{IN_CREATE | IN_MOVED_TO, WATCH_CREATE}, {IN_MODIFY, WATCH_WRITE}, {IN_DELETE | IN_DELETE_SELF, WATCH_REMOVE},
		{IN_MOVED_FROM | IN_MOVE_SELF, WATCH_RENAME}, {IN_ATTRIB, WATCH_CHMOD},
	};
	char path[MAX_PATH];
	int failed = 0;
	if (e->mask & IN_Q_OVERFLOW)
		return report(WATCH_OVERFLOW, "", "");
	struct watched *w = find(e->wd);
	if (w == NULL)
		return 0;
	if (e->mask & IN_IGNORED) {
		forget(w);
		return 0;
	}
	const char *name = e->len ? e->name : "";
	if (!*name && *w->path)
		return 0;  // the watch of the folder above reports this change
	if ((size_t)snprintf(path, sizeof path, "%s%s%s", w->path, *w->path ? "/" : "", name) >= sizeof path)
		return report(WATCH_OVERFLOW, "", "");
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !failed; i++)
		if (e->mask & kinds[i].mask)
			failed = report(kinds[i].kind, "", *path ? path : ".");
	if (failed || !recursive || !*name || !(e->mask & IN_ISDIR))
		return failed;
	if (e->mask & (IN_MOVED_FROM | IN_DELETE))
		forget_below(path);
	if (!(e->mask & (IN_CREATE | IN_MOVED_TO)))
		return 0;
	failed = add_below(path, (e->mask & IN_CREATE) != 0, MAX_LEVELS);
	if (failed == ENOENT || failed == ENOTDIR || failed == EACCES)
		return 0;
	return failed == ENOSPC || failed == ENAMETOOLONG ? report(WATCH_OVERFLOW, "", "") : failed;
}

int watch(const char *path, int recursive)
{
	static char buf[QUEUE] __attribute__((aligned(__alignof__(struct inotify_event))));
	if (strlen(path) >= sizeof top)
		return ENAMETOOLONG;
	strcpy(top, path);
	queue = inotify_init1(IN_CLOEXEC);
	if (queue < 0)
		return errno;
	int failed = recursive ? add_below("", 0, MAX_LEVELS) : add("");
	if (!failed)
		failed = report(WATCH_READY, "", "");
	while (!failed) {
		struct pollfd p[] = {{queue, POLLIN, 0}, {FLOW_CONTROL, POLLIN, 0}};
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return errno;
		if (p[1].revents)
			failed = flow_allow();
		if (!p[0].revents || failed)
			continue;
		ssize_t n = read(queue, buf, sizeof buf);
		if (n < 0 && errno != EINTR)
			return errno;
		for (char *at = buf; at < buf + n && !failed;) {
			const struct inotify_event *e = (struct inotify_event *)at;
			failed = on_event(e, recursive);
			at += sizeof *e + e->len;
		}
	}
	return failed;
}
