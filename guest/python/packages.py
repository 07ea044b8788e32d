# Installs packages, in a machine of its own: what they run while they are installed is foreign code.
# plan.json beside it says what; /out gets the files and a lock. Without a tool in the plan the image's own pip
# installs them, where that does, and the lock is printed.
import json
import os
import subprocess
import sys
import tarfile
import zipfile

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, 'plan.json')) as f:
    plan = json.load(f)
target, report = '/tmp/packages', '/tmp/report.json'
env = dict(os.environ, PIP_CONFIG_FILE=os.devnull)
if plan['tool']:
    with zipfile.ZipFile(plan['tool']) as tool:
        tool.extractall('/tmp/pip')
    env['PYTHONPATH'] = '/tmp/pip'
    where = ['--target', target, '--no-compile']
else:
    import pip
    if tuple(int(n) for n in pip.__version__.split('.')[:2]) < (22, 2):
        sys.exit('ERROR: the pip of the image is %s, and 22.2 is the first that says what it has installed' % pip.__version__)
    # With a date bytecode does not depend on when it was made.
    env.update(PIP_BREAK_SYSTEM_PACKAGES='1', PIP_ROOT_USER_ACTION='ignore', SOURCE_DATE_EPOCH='946684800')
    where = []

command = [sys.executable, '-m', 'pip', 'install'] + where + ['--report', report, '--prefer-binary', '--no-input', '--no-cache-dir',
           '--disable-pip-version-check', '--no-warn-script-location', '--progress-bar', 'off', '--quiet', '--retries', '1', '--timeout', '15', '--index-url', plan['url']]
for url in plan.get('more') or []:
    command += ['--extra-index-url', url]
for host in plan.get('plain') or []:
    command += ['--trusted-host', host]
if plan.get('ca'):
    command += ['--cert', os.path.join(here, 'ca.pem')]
if plan.get('lock'):
    with open('/tmp/requirements.txt', 'w') as f:
        for p in plan['lock']:
            f.write('%s==%s --hash=%s\n' % (p['name'], p['version'], p['digest'].replace('-', ':', 1)))
    command += ['--no-deps', '--require-hashes', '--requirement', '/tmp/requirements.txt']
else:
    command += ['--'] + plan['specs']
code = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode
if code:
    sys.exit(1)

if plan['tool']:
    subprocess.run([sys.executable, '-m', 'compileall', '-q', '-q', '--invalidation-mode', 'unchecked-hash', '-s', target, '-p', plan['place'], target],
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
lock = []
with open(report) as f:
    for item in json.load(f)['install']:
        info = item['download_info'].get('archive_info') or {}
        digest = (info.get('hashes') or {}).get('sha256') or (info.get('hash') or '').partition('sha256=')[2]
        lock.append({'name': item['metadata']['name'], 'version': item['metadata']['version'], 'digest': 'sha256-' + digest if digest else ''})
if not plan['tool']:
    print('unitask: lock ' + json.dumps({'packages': lock}))
    sys.exit()
with open('/out/lock.json', 'w') as f:
    json.dump({'packages': lock}, f)
with tarfile.open('/out/packages.tar', 'w', dereference=True) as out:
    for folder, folders, files in os.walk(target):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                out.add(path, os.path.relpath(path, target), recursive=False)
