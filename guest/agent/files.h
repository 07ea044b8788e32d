// Files that the host puts, and those that it takes back.
#ifndef UNITASK_FILES_H
#define UNITASK_FILES_H

#include "agent.h"

#pragma GCC visibility push(hidden)  // a module of the code's may have functions of these names

// on_file takes a file frame: u8 kind (f, d, l), u8 owner (0 root, 1 user), u32 mode,
// u64 size, u64 mtime in ns (0 is now), u16 path length, path, and for l the link's
// target. on_data takes a part of the file. -1 when it can't.
int on_file(struct agent *a, const uint8_t *p, size_t n);
int on_data(struct agent *a, const uint8_t *p, size_t n);
// settle_files gives the files that wait their lengths and times.
void settle_files(struct agent *a);
// drop_file settles them, and ends a file whose rest does not come.
void drop_file(struct agent *a);
// forget_folder forgets which folder is known to be there.
void forget_folder(void);

// send_artifacts sends what is in /out, files of so many bytes at most; send_layer what the code has changed of its
// root (artifacts.c). -1 when the host is gone.
int send_artifacts(int conn, uint64_t most);
int send_layer(struct agent *a, int conn);

// look_at has tell_left look at a folder, and look_from only for what is made from now on (left.c).
int look_at(const uint8_t *path, size_t n);
void look_from(void);
void tell_left(void);

#pragma GCC visibility pop

#endif
