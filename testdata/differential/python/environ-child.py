import os, subprocess, sys
code = 'import os; print(sorted(k for k in os.environ)); print(os.environ.get("X"))'
print(subprocess.run([sys.executable, '-c', code], env={'X': '1', 'PATH': os.environ['PATH']}, capture_output=True, text=True).stdout)
os.environ['X'] = 'two'
sys.stdout.flush()
subprocess.run([sys.executable, '-c', code])
