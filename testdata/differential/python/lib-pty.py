import os, pty, sys, termios, tty
m, s = pty.openpty(); print(os.isatty(s), os.ttyname(s).startswith('/dev/pts/')); os.write(m, b'typed\n'); print(os.read(s, 100)); tty.setraw(s); print(termios.tcgetattr(s)[3] & termios.ECHO)
