import curses, readline, getpass, os
print(curses.version.__class__.__name__, readline.get_history_length(), os.get_terminal_size.__name__)
curses.setupterm('dumb')
print(curses.tigetnum('cols'))
