// A session's program on this host, for tests: its commands run as whoever runs the test.
#include "../../init/session.h"

#include <sys/types.h>

int __wrap_fchown(int fd, uid_t user, gid_t group);
int __wrap_fchown(int fd, uid_t user, gid_t group)
{
	(void)fd, (void)user, (void)group;
	return 0;
}

static void become(void) {}

int main(void)
{
	session_run(become);
}
