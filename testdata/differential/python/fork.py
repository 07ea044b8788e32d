import os, sys
print('buffered before the fork')
pid = os.fork()
if pid == 0:
    print('child')
    sys.exit(6)
print('waited', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
