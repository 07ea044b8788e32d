// Frames on their way to the host, and the encoding of numbers in frames.
#ifndef UNITASK_FRAMES_H
#define UNITASK_FRAMES_H

#include "agent.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

enum { OUT_SIZE = 256 << 10 };  // frames waiting for the host to read

extern uint8_t out_buf[OUT_SIZE];  // out_buf[out_off..out_len) waits to be sent
extern size_t out_off, out_len;
extern size_t out_head;  // start of the frame that contains out_off, kept until all of it was sent

static inline void put32(uint8_t *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); }
static inline uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static inline uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }
static inline uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

void nonblocking(int fd, int on);
int write_all(int fd, const void *buf, size_t n);

// out_room returns the number of free bytes of the out buffer.
size_t out_room(void);
void out_frame(uint8_t type, const void *data, size_t n);
// out_flush sends as much as possible; -1 when the host is gone.
int out_flush(int conn);
// pump moves one chunk of a stream into the out buffer. It returns the number of bytes, 0 at the end
// of the stream, -1 when there is nothing now.
ssize_t pump(int fd, uint8_t type);
// flush_streams moves the streams' contents into frames and sends them; -1 when the host is gone.
int flush_streams(struct agent *a, int conn);
// discard drops the contents of a stream: output from before the start.
void discard(int fd);

#pragma GCC visibility pop

#endif
