// A session's program on this host, for tests: its commands run as whoever runs the test.
#include "../../init/session.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

int __wrap_fchown(int fd, uid_t user, gid_t group);
int __wrap_fchown(int fd, uid_t user, gid_t group)
{
	(void)fd, (void)user, (void)group;
	return 0;
}

// become stops the one command that starts while a file exists, as another process of its user could.
static void become(int flags)
{
	(void)flags;
	if (getenv("STOP") && unlink(getenv("STOP")) == 0)
		raise(SIGSTOP);
}

int main(void)
{
	session_run(become, getuid());
}
