// The root of a container's image, for PID 1 (init.c).
#ifndef UNITASK_CONTAINER_H
#define UNITASK_CONTAINER_H

#include <sys/types.h>

extern int container;  // this machine's root is a container's image
extern uid_t container_owner;  // the user of the image's program

// container_read reads CONTAINER_FILE, which is missing in machines without a container's image.
void container_read(void);
// container_mount mounts memory over the image's disk. container_enter makes the image's root init's
// own root. No link of the image can then lead files of a run, or /out, out of the image. exec is the
// program that spawn will start.
void container_mount(void);
void container_enter(const char *exec);
// container_fork forks a process that sees only the image: it has separate processes, mounts and
// messages.
pid_t container_fork(void);
// container_inside makes the image's root the root of the forked process. container_rights then gives
// a command of a session the rights of the image's user, or of its root (EXEC_ROOT).
void container_inside(void);
void container_rights(int flags);
// container_exec does what container_inside and container_rights do, and becomes the program.
void container_exec(char **argv, char **env);
// container_upper returns the folder with the changes to the image, -1 if it can't open that.
// container_layer begins to write the changes as an archive that ends in LAYER_END, and returns a
// descriptor to read the archive from (layer.c).
int container_upper(void);
int container_layer(void);

// In init.c.
void die(const char *what);
void must_mount(const char *src, const char *dst, const char *type, unsigned long flags, const char *opt);
void put(const char *path, const char *text);

#endif
