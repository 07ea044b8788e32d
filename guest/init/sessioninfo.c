// Prints entries of files in detail. An entry begins with blank-separated fields:
//
//	kind, mode, size in bytes, time (ns since 1970), user id, group id
//	kind and mode of a link's target (`-` and 0 without a target)
//	number of metadata
//
// Strings follow, each with a NUL before it:
//
//	path
//	name of the user, name of the group
//	path of a link's target
//	name and value of each metadata
//
// A NUL ends the entry.
#define _GNU_SOURCE
#include "sessionmore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { DEPTH = 64, ATTRIBUTES = 64 << 10, MAX_METADATA = 64, NAME = 64 };

// user_name returns a user's name in the machine, or the id if there is no name.
static const char *user_name(uid_t id)
{
	static char name[NAME];
	static uid_t of;
	if (*name && of == id)
		return name;
	of = id;
	snprintf(name, sizeof name, "%u", (unsigned)id);
	FILE *list = fopen("/etc/passwd", "re");
	for (const struct passwd *p; list && (p = fgetpwent(list)) != NULL;)
		if (p->pw_uid == id) {
			snprintf(name, sizeof name, "%s", p->pw_name);
			break;
		}
	if (list)
		fclose(list);
	return name;
}

static const char *group_name(gid_t id)
{
	static char name[NAME];
	static gid_t of;
	if (*name && of == id)
		return name;
	of = id;
	snprintf(name, sizeof name, "%u", (unsigned)id);
	FILE *list = fopen("/etc/group", "re");
	for (const struct group *g; list && (g = fgetgrent(list)) != NULL;)
		if (g->gr_gid == id) {
			snprintf(name, sizeof name, "%s", g->gr_name);
			break;
		}
	if (list)
		fclose(list);
	return name;
}

// metadata prints a file's metadata to out, without values that contain a NUL, and returns its count.
static unsigned metadata(FILE *out, const char *path)
{
	static char names[ATTRIBUTES], value[ATTRIBUTES];
	const size_t prefix = sizeof METADATA_PREFIX - 1;
	unsigned count = 0;
	ssize_t n = llistxattr(path, names, sizeof names);
	for (const char *name = names; n > 0 && name < names + n && count < MAX_METADATA; name += strlen(name) + 1) {
		if (strncmp(name, METADATA_PREFIX, prefix) != 0)
			continue;
		ssize_t len = lgetxattr(path, name, value, sizeof value);
		if (len < 0 || memchr(value, 0, (size_t)len))
			continue;
		fprintf(out, "%c%s%c%.*s", 0, name + prefix, 0, (int)len, value);
		count++;
	}
	return count;
}

static void print_entry(FILE *out, const char *path, const struct stat *st)
{
	char target[MAX_PATH] = "", *text = NULL;
	size_t len = 0;
	struct stat to = {0};
	int leads = S_ISLNK(st->st_mode) && realpath(path, target) && stat(target, &to) == 0;
	FILE *more = open_memstream(&text, &len);
	unsigned count = more && !S_ISLNK(st->st_mode) ? metadata(more, path) : 0;
	if (more == NULL || fclose(more) != 0)
		count = 0, len = 0;
	fprintf(out, "%c %o %llu %lld %u %u %c %o %u%c%s%c%s%c%s%c%s", session_kind(st->st_mode), (unsigned)st->st_mode & 07777,
		(unsigned long long)st->st_size, (long long)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
		(unsigned)st->st_uid, (unsigned)st->st_gid, leads ? session_kind(to.st_mode) : '-', (unsigned)to.st_mode & 07777,
		count, 0, path, 0, user_name(st->st_uid), 0, group_name(st->st_gid), 0, leads ? target : "");
	fwrite(text, 1, len, out);
	putc(0, out);
	free(text);
}

int info_stat(FILE *out, const char *path)
{
	struct stat st;
	if (lstat(path, &st) < 0)
		return errno;
	print_entry(out, path, &st);
	return 0;
}

static int print_folder(FILE *out, int dir, char *path, size_t len, int depth)
{
	struct dirent **names;
	int n = scandirat(dir, ".", &names, NULL, alphasort);
	if (n < 0)
		return errno;
	for (int i = 0; i < n; free(names[i++])) {
		struct stat st;
		const char *name = names[i]->d_name;
		size_t end = len + strlen(name);
		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || end + 1 >= MAX_PATH || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		strcpy(path + len, name);
		print_entry(out, path, &st);
		int sub = S_ISDIR(st.st_mode) && depth > 1 ? openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
		if (sub >= 0) {
			strcpy(path + end, "/");
			print_folder(out, sub, path, end + 1, depth - 1);
			close(sub);
		}
	}
	free(names);
	return 0;
}

int info_entries(FILE *out, const char *name, int depth)
{
	char path[MAX_PATH];
	size_t len = strlen(name);
	if (len + 2 > sizeof path)
		return ENAMETOOLONG;
	int dir = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return errno;
	memcpy(path, name, len + 1);
	if (path[len - 1] != '/')
		strcpy(path + len++, "/");
	int failed = print_folder(out, dir, path, len, depth < DEPTH ? depth : DEPTH);
	close(dir);
	return failed;
}
