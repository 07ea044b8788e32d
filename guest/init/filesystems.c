// Mounts the parts of the disk that the code sees, and memory that it can write to.
#define _GNU_SOURCE
#include "../agent/agent.h"
#include "container.h"
#include "init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// load_modules loads the modules that /modules/order lists, each after the modules that it needs.
static void load_modules(void)
{
	char path[64];
	FILE *list = fopen("/modules/order", "re");
	while (list && fscanf(list, "%63s", path) == 1) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || syscall(SYS_finit_module, fd, "", 0) < 0)
			die(path);
		close(fd);
	}
	if (list)
		fclose(list);
}

static char folders[1024];  // the text of FOLDERS_FILE with a newline before it: a folder per line

// whole tests whether a folder is mounted and not copied.
static int whole(const char *path)
{
	char line[PATH_MAX + 2];
	snprintf(line, sizeof line, "\n%s\n", path);
	return strstr(folders, line) != NULL;
}

static void read_folders(void)
{
	int fd = open("/image" FOLDERS_FILE, O_RDONLY | O_CLOEXEC);
	folders[0] = '\n';
	if (fd >= 0 && read(fd, folders + 1, sizeof folders - 2) < 0)
		die(FOLDERS_FILE);
	close(fd);
}

#define LAID "/laid"  // where lay mounts memory temporarily

// lay mounts a folder of the disk, with memory over it that only root can write to. So a missing
// file gives ENOENT, and a forbidden write EACCES, as on other machines. A read-only mount would give
// EROFS for both.
static void lay(const char *src, const char *dst)
{
	static int count;
	char upper[32], work[32], options[PATH_MAX + 128];
	if (count++ == 0)
		must_mount("tmpfs", LAID, "tmpfs", MS_NODEV | MS_NOSUID, "mode=700");
	snprintf(upper, sizeof upper, LAID "/%d", count);
	snprintf(work, sizeof work, LAID "/%d.work", count);
	snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s", src, upper, work);
	if (mkdir(upper, 0755) < 0 || mkdir(work, 0755) < 0)
		die(upper);
	must_mount("overlay", dst, "overlay", MS_NODEV | MS_NOSUID, options);
}

enum { MOST_COPIED = 64 << 10 };  // bytes of a file: larger ones stay on the disk

// copy_tree copies the files and links below a folder, with root as their owner, and mounts large
// files. A copy's mode forbids writing, as on other machines, instead of a read-only disk.
static void copy_tree(const char *from, const char *to)
{
	char src[PATH_MAX], dst[PATH_MAX], text[16 << 10];
	struct dirent *e;
	struct stat st;
	DIR *d = opendir(from);
	if (d == NULL || (mkdir(to, 0755) < 0 && errno != EEXIST))
		die(to);
	while ((e = readdir(d)) != NULL) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		snprintf(src, sizeof src, "%s/%s", from, e->d_name);
		snprintf(dst, sizeof dst, "%s/%s", to, e->d_name);
		ssize_t n;
		if (lstat(src, &st) < 0)
			die(src);
		if (S_ISDIR(st.st_mode) && whole(dst)) {
			lay(src, dst);
		} else if (S_ISDIR(st.st_mode)) {
			copy_tree(src, dst);
		} else if (S_ISLNK(st.st_mode)) {
			if ((n = readlink(src, text, sizeof text - 1)) < 0)
				die(src);
			text[n] = 0;
			if (symlink(text, dst) < 0)
				die(dst);
		} else {
			int in = open(src, O_RDONLY | O_CLOEXEC), out = open(dst, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, st.st_mode & 0777);
			n = 0;
			while (st.st_size <= MOST_COPIED && (n = read(in, text, sizeof text)) > 0)
				if (write(out, text, (size_t)n) != n)
					die(dst);
			if (in < 0 || out < 0 || n < 0)
				die(src);
			close(in);
			close(out);
			if (st.st_size > MOST_COPIED)
				must_mount(src, dst, NULL, MS_BIND, NULL);
		}
	}
	closedir(d);
}

// mount_folders mounts the folders at the root that a custom image has added.
static void mount_folders(void)
{
	char src[PATH_MAX], *end;
	for (char *line = folders + 1; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		snprintf(src, sizeof src, "/image%.*s", (int)(end - line), line);
		if (memchr(line + 1, '/', (size_t)(end - line) - 1) == NULL)
			must_mount(src, src + strlen("/image"), NULL, MS_BIND, NULL);
	}
}

// disk_type returns the disk's filesystem: erofs, if its superblock says so.
static const char *disk_type(void)
{
	uint8_t magic[4] = {0};
	int fd = open("/dev/vda", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || pread(fd, magic, sizeof magic, 1024) < 0)
		die("/dev/vda");
	close(fd);
	return memcmp(magic, "\xe2\xe1\xf5\xe0", sizeof magic) == 0 ? "erofs" : "ext4";
}

void filesystems(void)
{
	must_mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
	must_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	must_mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	// A guest that is short of memory and has no swap would drop Node's code and read it again for
	// minutes. The multi-generational LRU keeps pages that were used in the last half second instead.
	// If it can't, the OOM killer acts (Linux, Documentation/admin-guide/mm/multigen_lru.rst).
	put("/sys/kernel/mm/lru_gen/enabled", "y");
	put("/sys/kernel/mm/lru_gen/min_ttl_ms", "500");
	mount(NULL, "/sys", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	load_modules();
	must_mount("/dev/vda", "/image", disk_type(), MS_RDONLY | MS_NODEV | MS_NOSUID, NULL);
	// Only Node gets this mount. Node finds the free memory through /proc/self/cgroup. A Go program
	// searches there for its processors at each start, and starts faster without the mount.
	if (access("/image" PRELOAD, F_OK) == 0)
		mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, CGROUP_OPTIONS);
	container_read();
	if (container) {
		container_mount();
		return;
	}
	mkdir(UNITASK_DIR, 0755);
	read_folders();
	static const char *dirs[] = {"/etc", "/usr", "/lib", "/lib64", LIB_DIR};
	for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
		char src[64];
		snprintf(src, sizeof src, "/image%s", dirs[i]);
		if (access(src, F_OK) < 0)
			continue;
		copy_tree(src, dirs[i]);
	}
	mount_folders();
	umount2(LAID, MNT_DETACH);
	rmdir(LAID);
	mkdir("/dev/pts", 0755);
	must_mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "mode=620,ptmxmode=666");
	mkdir("/dev/shm", 01777);
	must_mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
	must_mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
	static const char *usual[] = {"/home", "/mnt", "/opt", "/srv", "/run", "/var", "/var/cache", "/var/lib", "/var/log"};
	for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
		mkdir(usual[i], 0755);
	mkdir("/var/tmp", 01777);
	chmod("/var/tmp", 01777);  // mkdir applies the umask
	mkdir(HOME_DIR, 0755);
	mkdir(OUT_DIR, 0755);
	put(TRUSTED, "");
	chmod("/root", 0755);  // the kernel's own initramfs has it with 0700
	if (chown(HOME_DIR, USER_ID, USER_ID) < 0 || chown(OUT_DIR, USER_ID, USER_ID) < 0 ||
	    chown(TRUSTED, USER_ID, USER_ID) < 0)
		die("chown");
	static const char *links[][2] = {{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"},
					 {"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"},
					 {"usr/bin", "/bin"}};
	for (size_t i = 0; i < sizeof links / sizeof *links; i++)
		if (symlink(links[i][0], links[i][1]) < 0)
			die(links[i][1]);
}
