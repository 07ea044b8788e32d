// Sets up a machine whose root is a container's image: the read-only disk with memory over it. The
// image's program runs as in a container, with slightly fewer privileges. Init, which serves the
// conversation, has other namespaces for processes and mounts. The program has no privilege to reach
// those.
#define _GNU_SOURCE
#include "container.h"
#include "init.h"
#include "../contract/contract.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int container;
uid_t container_owner;

enum { HIGH_FD = 32 };  // above the descriptors that a process gets at its start

static gid_t group, groups[MAX_GROUPS + 1];  // groups begins with group, because programs look for group there, too
static size_t group_count;
static int stage = -1, program = -1;  // the folder above the image's root; the program that spawn starts

void container_read(void)
{
	unsigned uid, gid, more;
	FILE *f = fopen(CONTAINER_FILE, "re");
	if (f == NULL)
		return;
	if (fscanf(f, "%u %u", &uid, &gid) != 2)
		die(CONTAINER_FILE);
	container = 1;
	container_owner = uid;
	group = gid;
	groups[group_count++] = gid;
	while (group_count <= MAX_GROUPS && fscanf(f, "%u", &more) == 1)
		if (more != gid)
			groups[group_count++] = more;
	fclose(f);
}

void container_mount(void)
{
	struct stat st;
	must_mount("tmpfs", "/stage", "tmpfs", MS_NODEV, "mode=755");
	must_mount("tmpfs", "/stage/memory", "tmpfs", MS_NODEV, "mode=700");
	// The root has the mode and owner of the upper layer's root.
	if (stat("/image", &st) < 0 || mkdir("/stage/memory/upper", 0755) < 0 || mkdir("/stage/memory/work", 0755) < 0 ||
	    chown("/stage/memory/upper", st.st_uid, st.st_gid) < 0 || chmod("/stage/memory/upper", st.st_mode & 07777) < 0)
		die("lay memory over the image");
	must_mount("overlay", "/stage/root", "overlay", MS_NODEV, "lowerdir=/image,upperdir=/stage/memory/upper,workdir=/stage/memory/work");
}

// folder makes a folder at a path, and replaces a file or link that the image has there.
static void folder(const char *path, mode_t mode)
{
	struct stat st;
	if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return;
	unlink(path);
	if (mkdir(path, mode) < 0 || chmod(path, mode) < 0)
		die(path);
}

// text makes a file at a path, and replaces a file or link that the image has there.
static void text(const char *path, const char *content)
{
	unlink(path);
	put(path, content);
}

static void devices(void)
{
	static const struct {
		const char *path;
		unsigned major, minor;
	} nodes[] = {{"/dev/null", 1, 3}, {"/dev/zero", 1, 5}, {"/dev/full", 1, 7}, {"/dev/random", 1, 8}, {"/dev/urandom", 1, 9}, {"/dev/tty", 5, 0}};
	static const char *links[][2] = {{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"},
					 {"/proc/self/fd/2", "/dev/stderr"}, {"pts/ptmx", "/dev/ptmx"}};
	must_mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k");
	for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
		if (mknod(nodes[i].path, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) < 0 || chmod(nodes[i].path, 0666) < 0)
			die(nodes[i].path);
	for (size_t i = 0; i < sizeof links / sizeof *links; i++)
		if (symlink(links[i][0], links[i][1]) < 0)
			die(links[i][1]);
	must_mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,gid=5,mode=620,ptmxmode=666");
	must_mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777");
}

static void own(const char *path)
{
	if (lchown(path, container_owner, group) < 0)
		die(path);
}

void container_enter(const char *exec)
{
	int fd = open(exec, O_RDONLY | O_CLOEXEC);
	program = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
	if (program < 0)
		die(exec);
	close(fd);
	put("/proc/sys/kernel/pid_max", "4096");  // limits a fork bomb of the image's root
	// pivot_root(2) can't leave the kernel's first root, which is init's: so move another root over it.
	if (chdir("/stage") < 0 || mount("/stage", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
	    (stage = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0 || chdir("/root") < 0 || chroot(".") < 0)
		die("enter the image");
	static const struct {
		const char *path;
		mode_t mode;
	} folders[] = {{"/proc", 0555}, {"/sys", 0555}, {"/dev", 0755}, {"/tmp", 01777}, {"/run", 0755}, {OUT_DIR, 0755}, {UNITASK_DIR, 0755}};
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		folder(folders[i].path, folders[i].mode);
	// Mount these for init, too: the image may have links into them, which files of the run would follow.
	must_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL);
	must_mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL);
	mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, CGROUP_OPTIONS);
	devices();
	mkdir("/etc", 0755);
	text("/etc/resolv.conf", "nameserver " GATEWAY_IP "\noptions timeout:2 attempts:1\n");
	text("/etc/hosts", "127.0.0.1 localhost " HOSTNAME "\n::1 localhost\n");
	text("/etc/hostname", HOSTNAME "\n");
	text(TRUSTED, "");
	own(TRUSTED);
	own(OUT_DIR);
}

int container_upper(void)
{
	return openat(stage, "memory/upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

pid_t container_fork(void)
{
	// The child begins in the folder above the image's root, to make the image's root its own.
	if (fchdir(stage) < 0 || chroot(".") < 0)
		die("leave the image");
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS, 0, 0, 0, 0);
	if (pid != 0 && (chdir("/root") < 0 || chroot(".") < 0 || chdir("/") < 0))
		die("enter the image");
	return pid;
}

// hide makes files read-only that could change the machine, and hides files that reveal the machine
// under empty ones.
static void hide(void)
{
	static const char *const fixed[] = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"};
	static const char *const files[] = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats", "/proc/kmsg",
					    "/proc/kallsyms", "/proc/cmdline"};
	static const char *const dirs[] = {"/proc/acpi", "/proc/scsi", "/sys/firmware"};
	for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
		if (access(fixed[i], F_OK) == 0 &&
		    (mount(fixed[i], fixed[i], NULL, MS_BIND | MS_REC, NULL) < 0 ||
		     mount(NULL, fixed[i], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0))
			die(fixed[i]);
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (access(files[i], F_OK) == 0 && mount("/dev/null", files[i], NULL, MS_BIND, NULL) < 0)
			die(files[i]);
	for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
		if (access(dirs[i], F_OK) == 0 && mount("tmpfs", dirs[i], "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=0") < 0)
			die(dirs[i]);
}

// privileges makes the calling process the image's user, or its root, with the usual privileges of
// containers, except those for devices and raw sockets. None of them reaches out of the image's root.
// -1 if it can't.
static int privileges(int root)
{
	uid_t uid = root ? 0 : container_owner;
	gid_t gid = root ? 0 : group;
	static const int kept[] = {CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP,
				   CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT, CAP_SETFCAP};
	unsigned long long bits = 0;
	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
		bits |= 1ULL << kept[i];
	for (int c = 0; c <= 63 && prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; c++)
		if (!(bits >> c & 1) && prctl(PR_CAPBSET_DROP, c, 0, 0, 0) < 0)
			return -1;
	struct rlimit core = {0, 0}, files = {65536, 65536};
	setrlimit(RLIMIT_CORE, &core);
	setrlimit(RLIMIT_NOFILE, &files);
	if (setgroups(root ? 1 : group_count, root ? &gid : groups) < 0 || setresgid(gid, gid, gid) < 0)
		return -1;
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct caps[2] = {{(unsigned)bits, (unsigned)bits, 0}, {(unsigned)(bits >> 32), (unsigned)(bits >> 32), 0}};
	return syscall(SYS_capset, &head, caps) < 0 || setresuid(uid, uid, uid) < 0 ? -1 : 0;
}

void container_inside(void)
{
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || chdir("/root") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 ||
	    umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		die("enter the image");
	umount2("/proc", MNT_DETACH);
	must_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	hide();
}

void container_rights(int flags)
{
	put("/proc/self/oom_score_adj", "0");
	if (privileges(flags & EXEC_ROOT) < 0)
		_exit(EXIT_UNKNOWN);
}

void container_exec(char **argv, char **env)
{
	container_inside();
	put("/proc/self/oom_score_adj", "0");
	if (privileges(0) < 0)
		die("become the image's user");
	fexecve(program, argv, env);
	_exit(EXIT_NO_EXEC);
}
