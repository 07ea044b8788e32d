// Files that have been written. Every five seconds the kernel tries to write all that is
// dirty to its disk, which is read-only; it fails, and tries again for ever, and nothing
// else runs meanwhile. What is behind the end of a file when it tries it forgets to
// write, and keeps in memory. So a file that nobody can write any more has no length for
// a moment, while the kernel looks at it. Whoever asks for its length or reads its end
// in that moment asks again.
#define _GNU_SOURCE
#include "files.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // who writes what, and the moment itself
static atomic_uint moments;                              // odd while there is one
static int highest;                                      // descriptor that was ever noted

// moment waits for the end of the present one, and says how many there were.
unsigned moment(void)
{
	unsigned n = atomic_load(&moments);
	if (n % 2 == 0)
		return n;
	pthread_mutex_lock(&lock);
	n = atomic_load(&moments);
	pthread_mutex_unlock(&lock);
	return n;
}

bool moment_since(unsigned n) { return atomic_load(&moments) != n; }

// written notes a descriptor that was opened for writing, and empties its file if it is
// to be. The agent settles its own files by itself.
long written(int fd, bool empty)
{
	struct descriptor *d = descriptor(fd);
	struct stat st;
	long r = 0;
	pthread_mutex_lock(&lock);
	if (call(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode)) {
		if (empty && st.st_size > 0)
			r = cut(fd, 0);
		if (d && r == 0 && !own_thread) {
			d->writes = st.st_ino;
			if (fd > highest)
				highest = fd;
		}
	}
	pthread_mutex_unlock(&lock);
	return r;
}

static bool written_elsewhere(ino_t file)
{
	for (int i = 0; i <= highest; i++)
		if (descriptors[i].writes == file)
			return true;
	return false;
}

// again says that a file was settled less than a second ago, and no other since: who opens one for
// each of many lines pays for it once a second. Of one file the kernel can write the rest in vain.
static bool again(ino_t file)
{
	static ino_t last;
	static struct timespec when;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (file == last && (now.tv_sec - when.tv_sec) * 1000 + (now.tv_nsec - when.tv_nsec) / 1000000 < 1000)
		return true;
	last = file;
	when = now;
	return false;
}

// settle is called before a descriptor that was noted is closed.
void settle(int fd, struct descriptor *d)
{
	struct stat st;
	ino_t file = d->writes;
	pthread_mutex_lock(&lock);
	d->writes = 0;
	if (!written_elsewhere(file) && call(SYS_fstat, fd, &st) == 0 && st.st_size > 0 && !again(file)) {
		struct timespec times[2] = {st.st_atim, st.st_mtim};
		void *at = mmap(NULL, 1, PROT_NONE, MAP_SHARED, fd, 0);
		if (at != MAP_FAILED) {
			atomic_fetch_add(&moments, 1);
			if (call(SYS_ftruncate, fd, 0) == 0) {
				msync(at, 1, MS_SYNC);
				call(SYS_ftruncate, fd, st.st_size);
				call(SYS_utimensat, fd, NULL, times, 0);
			}
			atomic_fetch_add(&moments, 1);
			munmap(at, 1);
		}
	}
	pthread_mutex_unlock(&lock);
}
