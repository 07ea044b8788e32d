import subprocess, sys
sys.stdout.write('before\n'); sys.stdout.flush()
subprocess.run([sys.executable, '-c', 'import sys, signal; print(sys.stdin.read()); print(signal.getsignal(signal.SIGPIPE), signal.getsignal(signal.SIGINT))'])
with subprocess.Popen([sys.executable, '-u', '-c', 'for i in range(3): print(i)'], stdout=subprocess.PIPE, text=True) as p:
    for line in p.stdout:
        print('got', line.strip())
print(p.wait())
