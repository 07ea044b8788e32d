// How the host and the agent find each other: bell, seed, connection.
#ifndef UNITASK_HOST_H
#define UNITASK_HOST_H

#include "agent.h"

#pragma GCC visibility push(hidden)  // a module of the code's may have functions of these names

// What a datagram was.
enum datagram { NOISE, SEED, SEED_AGAIN, REHEARSE };

// tell sends the host a word.
void tell(struct agent *a, int udp, const char *word);
// take_datagram handles one datagram; seeded: a seed has come before.
enum datagram take_datagram(struct agent *a, int udp, int seeded);
// listen_socket returns a socket by which the host comes, -1 if there is none.
int listen_socket(struct agent *a, int type);
// accept_host accepts a connection of the host's; -1 if it is another's.
int accept_host(struct agent *a, int lsn);

#pragma GCC visibility pop

#endif
