import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt as e:
    print('caught', repr(e))
raise SystemExit(130)
