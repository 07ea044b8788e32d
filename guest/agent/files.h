// Files that the host puts, and those that it collects.
#ifndef UNITASK_FILES_H
#define UNITASK_FILES_H

#include "agent.h"

#pragma GCC visibility push(hidden)  // a module of the code may have functions with these names

// on_file handles a file frame:
//
//	u8 kind (f, d, l)
//	u8 owner (0 root, 1 user)
//	u32 mode
//	u64 size in bytes
//	u64 mtime in ns (0 is now)
//	u16 length of the path
//	path
//	the link's target (l only)
//
// on_data handles a part of the file. Both return -1 on failure.
int on_file(struct agent *a, const uint8_t *p, size_t n);
int on_data(struct agent *a, const uint8_t *p, size_t n);
// settle_files sets the lengths and times of the waiting files.
void settle_files(struct agent *a);
// drop_file does the same, and closes a file whose remaining data will not come.
void drop_file(struct agent *a);
// forget_folder makes the next file's folders be checked again.
void forget_folder(void);

// send_artifacts sends the contents of /out, of files at most `most` bytes. send_layer sends the changes
// to the code's root (artifacts.c). Both return -1 when the host is gone.
int send_artifacts(int conn, uint64_t most);
int send_layer(struct agent *a, int conn);

// look_at sets the folder that tell_left inspects; look_from sets the time from which files count
// as new (left.c).
int look_at(const uint8_t *path, size_t n);
void look_from(void);
void tell_left(void);

#pragma GCC visibility pop

#endif
