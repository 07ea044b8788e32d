// How the host and the agent find each other: bell, seed, connection.
#define _GNU_SOURCE
#include "host.h"
#include "frames.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static uint8_t nonce[NONCE_SIZE];  // the last seed's nonce

void tell(struct agent *a, int udp, const char *word)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(AGENT_PORT)};
	to.sin_addr.s_addr = a->gateway;
	sendto(udp, word, 4, 0, (struct sockaddr *)&to, sizeof to);
}

// The answer to a seed contains its nonce, so the host knows that this entropy was received. The
// host may ask again until it gets the answer.
enum datagram take_datagram(struct agent *a, int udp, int seeded)
{
	uint8_t m[128];
	struct sockaddr_in from;
	socklen_t flen = sizeof from;
	ssize_t n = recvfrom(udp, m, sizeof m, 0, (struct sockaddr *)&from, &flen);
	if (n < 0 || from.sin_addr.s_addr != a->gateway || from.sin_port != htons(AGENT_PORT))
		return NOISE;
	if (n == 4 && memcmp(m, WORD_REHEARSE, 4) == 0)
		return REHEARSE;
	if (n != 4 + NONCE_SIZE + 8 + ENTROPY_SIZE || memcmp(m, WORD_SEED, 4) != 0)
		return NOISE;
	int again = seeded && memcmp(m + 4, nonce, NONCE_SIZE) == 0;
	if (!again)
		a->seed(m + 20, ENTROPY_SIZE, (int64_t)get64(m + 12));
	memcpy(nonce, m + 4, NONCE_SIZE);
	memcpy(m, WORD_SEEDED, 4);
	sendto(udp, m, 4 + NONCE_SIZE, 0, (struct sockaddr *)&from, flen);
	return again ? SEED_AGAIN : SEED;
}

int listen_socket(struct agent *a, int type)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(AGENT_PORT)};
	int one = 1, s = socket(AF_INET, type | SOCK_CLOEXEC, 0);
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (s < 0 || bind(s, (struct sockaddr *)&at, sizeof at) < 0 || (type == SOCK_STREAM && listen(s, 1) < 0)) {
		dprintf(a->log, "unitask: cannot listen: %s\n", strerror(errno));
		return -1;
	}
	nonblocking(s, 1);
	return s;
}

// accept_host checks the address, because the code of a lasting conversation runs and can connect.
int accept_host(struct agent *a, int lsn)
{
	struct sockaddr_in from;
	socklen_t n = sizeof from;
	int conn = accept4(lsn, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (conn >= 0 && from.sin_addr.s_addr != a->gateway) {
		close(conn);
		return -1;
	}
	return conn;
}
