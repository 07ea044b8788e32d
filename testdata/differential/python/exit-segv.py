import faulthandler, os, signal
os.kill(os.getpid(), signal.SIGSEGV)
