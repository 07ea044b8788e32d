// Sends the contents of /out, and the changes to the code's root, to the host.
#define _GNU_SOURCE
#include "files.h"
#include "frames.h"
#include "out.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUT_DEPTH = 64 };  // levels of nested folders in /out

static uint64_t out_left;  // bytes of files that the host still accepts

// send_tree sends the contents of a folder, and closes its descriptor. An entry is: u8 kind (f, l, p,
// s, b, or x for the rest), u32 mode, path. A file's bytes follow. path[..len) is the folder's path
// below /out. -1 when the host is gone.
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

// send_layer does not report a missing layer: the host notices it.
int send_layer(struct agent *a, int conn)
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

int send_artifacts(int conn, uint64_t most)
{
	static char path[ARTIFACT_HEAD + MAX_PATH];
	int dir = open_out();
	out_left = most;
	if (dir >= 0 && send_tree(conn, dir, path, 0, 0) < 0)
		return -1;
	out_frame(FRAME_ARTIFACTS_END, "", 0);
	return out_flush(conn);
}
