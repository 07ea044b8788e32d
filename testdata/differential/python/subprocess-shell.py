import os, subprocess
print(subprocess.run('echo $0 $HOME; exit 4', shell=True, capture_output=True, text=True))
print(os.WEXITSTATUS(os.system('exit 3')), os.popen('echo popen').read())
print(subprocess.getstatusoutput('echo a; no-such-command'))
