// The parts of PID 1 (init.c).
#ifndef UNITASK_INIT_H
#define UNITASK_INIT_H

// filesystems loads the drivers and mounts all that the code sees (filesystems.c).
void filesystems(void);

// trace_start starts the kernel's own tracing (trace.c); then traced is true. trace_begin traces the
// system calls of the calling process, and of its later children. trace_end sends the rest of the
// trace, when only this process still runs.
extern int traced;
void trace_start(void);
void trace_begin(void);
void trace_end(void);

// CGROUP_OPTIONS are the options of every mount of the control groups, because those of the last mount
// apply to the whole hierarchy. nsdelegate makes a control group namespace a border that no process
// crosses (Linux, Documentation/admin-guide/cgroup-v2.rst).
#define CGROUP_OPTIONS "nsdelegate"

// processes_begin makes the control group of the code's processes, without a limit (processes.c).
// processes_join puts the calling process into the group. processes_limit sets how many processes and
// threads the group may have at once; -1 if it can't. processes_refused returns how many the group
// did not get.
void processes_begin(void);
void processes_join(void);
int processes_limit(unsigned most);
unsigned processes_refused(void);

// reset_connections resets the connections of every other process to other hosts (reset.c).
void reset_connections(void);

#endif
