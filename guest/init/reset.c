// Resets the code's connections when its machine has another network.
#define _GNU_SOURCE
#include "init.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

// reset_socket resets a connection to another host. Later calls get ECONNRESET, and waiting calls
// return.
static void reset_socket(int s)
{
	union {
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} peer;
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	socklen_t n = sizeof peer;
	if (getpeername(s, (struct sockaddr *)&peer, &n) < 0)
		return;
	uint32_t to = peer.v4.sin_addr.s_addr;
	if (peer.v4.sin_family == AF_INET6) {
		if (!IN6_IS_ADDR_V4MAPPED(&peer.v6.sin6_addr))
			return;  // only the loopback has IPv6
		memcpy(&to, peer.v6.sin6_addr.s6_addr + 12, sizeof to);
	}
	if (ntohl(to) >> 24 != IN_LOOPBACKNET)
		connect(s, &none, sizeof none);
}

// reset_connections finds connections by the descriptors of all processes, because only descriptors
// lead to them.
void reset_connections(void)
{
	DIR *all = opendir("/proc"), *fds;
	struct dirent *p, *f;
	char path[64], target[32];
	while (all && (p = readdir(all)) != NULL) {
		int pid = atoi(p->d_name), process;
		snprintf(path, sizeof path, "/proc/%d/fd", pid);
		if (pid <= 1 || (fds = opendir(path)) == NULL)
			continue;
		if ((process = (int)syscall(SYS_pidfd_open, pid, 0)) < 0) {
			closedir(fds);
			continue;
		}
		while ((f = readdir(fds)) != NULL) {
			ssize_t n = readlinkat(dirfd(fds), f->d_name, target, sizeof target);
			if (n < 7 || memcmp(target, "socket:", 7) != 0)
				continue;
			int s = (int)syscall(SYS_pidfd_getfd, process, atoi(f->d_name), 0), family = 0, type = 0;
			socklen_t size = sizeof family;
			if (s < 0)
				continue;
			getsockopt(s, SOL_SOCKET, SO_DOMAIN, &family, &size);
			getsockopt(s, SOL_SOCKET, SO_TYPE, &type, &size);
			if ((family == AF_INET || family == AF_INET6) && type == SOCK_STREAM)
				reset_socket(s);
			close(s);
		}
		close(process);
		closedir(fds);
	}
	if (all)
		closedir(all);
}
