// The parts of PID 1 (init.c).
#ifndef UNITASK_INIT_H
#define UNITASK_INIT_H

// filesystems loads the drivers and mounts all that the code sees (filesystems.c).
void filesystems(void);

// The kernel's own tracing (trace.c). traced tells whether it was started. trace_start starts it.
// trace_begin traces the system calls of the calling process, and of its later children. trace_end
// sends the rest of the trace, when only this process still runs.
extern int traced;
void trace_start(void);
void trace_begin(void);
void trace_end(void);

// reset_connections resets the connections of every other process to other hosts (reset.c).
void reset_connections(void);

#endif
