import os, socket, sys
print(open('/proc/self/comm').read(), os.readlink('/proc/self/exe'), open('/proc/self/cmdline', 'rb').read().split(b'\0')[0], os.sysconf('SC_PAGE_SIZE'), os.path.exists('/dev/null'), os.path.exists('/dev/shm'), open('/dev/zero', 'rb').read(2))
