// How the host and the agent find each other: bell, seed, connection.
#ifndef UNITASK_HOST_H
#define UNITASK_HOST_H

#include "agent.h"

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

// The kinds of a datagram.
enum datagram { NOISE, SEED, SEED_AGAIN, REHEARSE };

// tell sends a word to the host.
void tell(struct agent *a, int udp, const char *word);
// take_datagram handles one datagram. seeded: a seed has arrived before.
enum datagram take_datagram(struct agent *a, int udp, int seeded);
// listen_socket returns a socket for the host's messages or connections; -1 if there is none.
int listen_socket(struct agent *a, int type);
// accept_host accepts a connection from the host; -1 if it is from anybody else.
int accept_host(struct agent *a, int lsn);

#pragma GCC visibility pop

#endif
