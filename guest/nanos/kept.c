// Stores what Nanos does not: a file's permissions, its owner and its number of links.
#define _GNU_SOURCE
#include "files.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>

struct kept {
	uint64_t ino; // 0: free
	uint32_t uid, gid, links;
	uint16_t mode; // permissions
};

static struct kept *table; // open addressing, a power of two, never more than half full
static size_t table_size, table_used;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
atomic_bool any_links;

static struct kept *slot(uint64_t ino)
{
	size_t i = (size_t)(ino * 0x9e3779b97f4a7c15u >> 20) & (table_size - 1);
	while (table[i].ino != 0 && table[i].ino != ino)
		i = (i + 1) & (table_size - 1);
	return &table[i];
}

// entry returns the stored data of a file, and creates an entry if there is none; NULL without
// memory. The caller holds the table's lock.
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

// keep stores permissions, owner or a change of the number of links. FRESH drops the data of an
// earlier file with this inode number.
void keep(const struct stat *st, int what, mode_t mode, uid_t uid, gid_t gid, int links)
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

void made(int dir, const char *path, mode_t mode)
{
	struct stat st;
	if (status(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0)
		keep(&st, FRESH | MODE, mode & ~(mode_t)file_mask(), 0, 0, 0);
}

// mend completes the kernel's status of a file. The kernel's inode numbers are addresses, whose
// constant upper bits would not fit into a double. A folder has 1 link, which means that nobody
// counts them, as in btrfs.
void mend(struct stat *st)
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
