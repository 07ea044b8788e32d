import subprocess, sys
p = subprocess.run([sys.executable, '-c', 'import sys; print(sys.stdin.read().upper()); sys.stderr.write("err\\n"); sys.exit(3)'], input='text', capture_output=True, text=True)
print(p.returncode, repr(p.stdout), repr(p.stderr))
try:
    subprocess.run([sys.executable, '-c', 'raise SystemExit(2)'], check=True)
except subprocess.CalledProcessError as e:
    print(str(e).replace(sys.executable, 'PY'))
try:
    subprocess.run(['no-such-program'])
except FileNotFoundError as e:
    print(e)
try:
    subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'], timeout=0.2)
except subprocess.TimeoutExpired as e:
    print(type(e).__name__)
p = subprocess.run([sys.executable, '-c', 'import os, signal; os.kill(os.getpid(), signal.SIGTERM)'])
print(p.returncode, p)
