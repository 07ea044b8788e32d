import os, signal, time
for name in ('SIGINT', 'SIGPIPE', 'SIGTERM', 'SIGHUP', 'SIGCHLD', 'SIGXFSZ', 'SIGUSR1', 'SIGQUIT'):
    print(name, signal.getsignal(getattr(signal, name)))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
got = []
signal.signal(signal.SIGUSR1, lambda n, f: got.append((n, f.f_lineno > 0)))
os.kill(os.getpid(), signal.SIGUSR1)
print(got, signal.strsignal(10))
signal.signal(signal.SIGALRM, lambda *a: print('alarm'))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
