// Declarations that the files for streams share. sockets.c has the calls before there is a
// connection, streams.c the calls on a connection, addresses.c the addresses.
#ifndef UNITASK_SOCKETS_H
#define UNITASK_SOCKETS_H

#include "calls.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
	FIRST_PORT = 32768,  // the first port for sockets that request none
	PORTS = 28232,
};

struct address {
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct sockaddr_un un;
	};
	socklen_t len; // 0: none
};

enum state {
	FRESH,  // no kernel address, and no peer
	LISTENING,  // the descriptor is readable when connections wait
	CONNECTED,  // to another socket here
	OUTSIDE,   // the kernel's own TCP
};

struct socket {
	int domain, fd, copies;  // copies: the number of the socket's descriptors
	enum state state;
	struct address local, remote;
	bool bound, only6, shares, nonblocking;
	bool lingers_not;  // SO_LINGER with time 0: close resets the connection
	struct socket *next;  // in the list of all sockets, or of those that nobody has accepted

	// LISTENING
	struct socket *first, *last; // list of the sockets that nobody has accepted
	int waiting;
	int waker;  // writing here makes fd readable
	int node;  // descriptor of the kernel's socket at the path, or -1
	uint64_t ino;  // inode number of the path

	// CONNECTED: these describe this end's actions. Both ends have the same lock.
	struct socket *peer; // NULL when it is closed
	pthread_mutex_t *lock;
	int *ends;  // the number of ends that use the lock
	uint64_t sent, received;
	bool shut;  // sends no more: the peer reads the sent bytes and then the end
	bool marked;  // shut, and a byte that is never delivered keeps the peer readable
	bool deaf;        // shut for reading
	bool gone;        // the peer has closed
	uint64_t left;  // bytes that the peer had sent; valid when gone or shut
	bool reset;  // the peer has reset the connection, and the program does not know it yet
	bool swallowed;  // a write came after the peer had closed
	bool established; // OUTSIDE
	bool late;  // OUTSIDE: shut here; the kernel gets the shutdown when the program has read all data
	enum {
		LIVES,
		CUT,  // the network is gone, so the connection is reset
		CUT_TOLD,  // the program also knows it
	} cut;            // OUTSIDE
	int epoll;
	struct epoll_event event;
	pthread_t waits; // the thread that asked for events
};

static inline struct socket *of(int fd)
{
	struct descriptor *d = descriptor(fd);
	return d ? d->socket : NULL;
}

// The library takes precedence over all others, so its own symbols are hidden.
#pragma GCC visibility push(hidden)

// addresses.c
extern struct socket *all; // streams that have an address
extern pthread_mutex_t all_lock;
void enlist(struct socket *s);
void delist(struct socket *s);
struct address plain(const struct address *a);
uint16_t port_of(const struct address *a);
void set_port(struct address *a, uint16_t port);
bool is_any(const struct address *a);
bool is_here(const struct address *a);
bool takes(const struct socket *s, const struct address *a);
bool free_for(const struct socket *s, bool to_listen);
bool any_port(struct socket *s);
bool take(struct address *a, const struct sockaddr *from, socklen_t len);
int give(const struct address *a, struct sockaddr *to, socklen_t *len);

#pragma GCC visibility pop

#endif
