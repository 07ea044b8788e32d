// The parts of PID 1 (init.c).
#ifndef UNITASK_INIT_H
#define UNITASK_INIT_H

// filesystems loads the drivers and mounts all that the code sees (filesystems.c).
void filesystems(void);

// The kernel's own tracing (trace.c): traced says that it was started. trace_start starts it.
// trace_begin has the system calls of the calling process, and of those that it starts, traced
// from now on. trace_end sends what is left of the trace: nothing runs any more but this.
extern int traced;
void trace_start(void);
void trace_begin(void);
void trace_end(void);

// reset_connections resets the connections of every other process to other hosts (reset.c).
void reset_connections(void);

#endif
