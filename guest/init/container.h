// The root of a container's image, for PID 1 (init.c).
#ifndef UNITASK_CONTAINER_H
#define UNITASK_CONTAINER_H

#include <sys/types.h>

extern int container;  // this machine has one
extern uid_t container_owner;  // the user of the image's program

// container_read reads CONTAINER_FILE; without the file, this is not such a machine.
void container_read(void);
// container_mount mounts memory over the image's disk. container_enter makes that the root of init
// itself: files of a run, and /out, are then found in the image only, whatever links it has. exec
// is the program that spawn will start.
void container_mount(void);
void container_enter(const char *exec);
// container_fork forks a process that sees only the image: it has separate processes, mounts and
// messages.
pid_t container_fork(void);
// container_inside makes the image's root that process's own. container_rights then gives a command
// of a session the rights of the image's user, or of its root (EXEC_ROOT).
void container_inside(void);
void container_rights(int flags);
// container_exec does both, and becomes the program.
void container_exec(char **argv, char **env);
// container_upper returns the folder with the changes to the image, -1 if it can't be opened.
// container_layer begins to write them as an archive that ends in LAYER_END, and returns a
// descriptor to read it from (layer.c).
int container_upper(void);
int container_layer(void);

// In init.c.
void die(const char *what);
void must_mount(const char *src, const char *dst, const char *type, unsigned long flags, const char *opt);
void put(const char *path, const char *text);

#endif
