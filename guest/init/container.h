// The root of a container's image, for PID 1 (init.c).
#ifndef UNITASK_CONTAINER_H
#define UNITASK_CONTAINER_H

#include <sys/types.h>

extern int container;             // this machine has one
extern uid_t container_owner;     // who the image's program runs as

// container_read reads CONTAINER_FILE; where there is none, this is no such machine.
void container_read(void);
// container_mount lays memory over the image's disk. container_enter makes that the root
// of init itself: where files of a run go, and what is read of /out, is then found in the image and nowhere
// else, whatever links it has. exec is the program that spawn will start.
void container_mount(void);
void container_enter(const char *exec);
// container_fork forks a process that has nothing of the machine but the image: its own
// processes, mounts and messages.
pid_t container_fork(void);
// container_exec becomes, in that process, the program, as the image's user.
void container_exec(char **argv, char **env);
// container_upper is the folder of what was changed of the image, -1 if it can't be opened. container_layer
// begins to write that as an archive, which ends in LAYER_END, and returns where it is read (layer.c).
int container_upper(void);
int container_layer(void);

// Init's.
void die(const char *what);
void must_mount(const char *src, const char *dst, const char *type, unsigned long flags, const char *opt);
void put(const char *path, const char *text);

#endif
