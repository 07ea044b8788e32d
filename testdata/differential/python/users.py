import getpass, grp, os, pwd
print(pwd.getpwuid(os.getuid()).pw_uid == os.getuid(), grp.getgrgid(os.getgid()).gr_gid == os.getgid(), os.path.expanduser('~'), pwd.getpwnam('root').pw_uid)
pwd.getpwnam('nobody-of-this-name')
