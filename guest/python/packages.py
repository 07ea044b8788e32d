# Installs packages in a separate machine, because their install scripts are untrusted code.
# plan.json in the same folder lists them; /out receives the files and a lock. Without a tool in the
# plan, the image's own pip installs them, if possible, and the lock is printed.
import importlib.metadata
import json
import os
import re
import site
import subprocess
import sys
import tarfile
import zipfile


def plain_name(spec):
    """Return the name of the package in a requirement, normalized as in PEP 503."""
    return re.sub('[-_.]+', '-', re.match('[A-Za-z0-9._-]*', spec).group()).lower()


def unask(name):
    """Remove the file REQUESTED (PEP 376) of a package that only other packages need."""
    dist = importlib.metadata.distribution(name)
    marks = [f for f in dist.files or [] if f.name == 'REQUESTED' and f.parent.name.endswith('.dist-info')]
    for mark in marks:
        record = dist.locate_file(mark).with_name('RECORD')
        lines = record.read_bytes().splitlines(keepends=True)
        record.write_bytes(b''.join(line for line in lines if not line.startswith(os.fsencode(mark) + b',')))
        os.remove(dist.locate_file(mark))


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
    # With a fixed date, bytecode does not depend on its build time. With a fixed seed, bytecode does not
    # depend on the order of sets. pip itself writes no bytecode.
    env.update(PIP_BREAK_SYSTEM_PACKAGES='1', PIP_ROOT_USER_ACTION='ignore', SOURCE_DATE_EPOCH='946684800', PYTHONHASHSEED='0', PYTHONDONTWRITEBYTECODE='1')
    where = []

command = [sys.executable, '-m', 'pip', 'install'] + where + ['--report', report, '--prefer-binary', '--no-input', '--no-cache-dir',
           '--disable-pip-version-check', '--no-warn-script-location', '--progress-bar', 'off', '--quiet']
# These are in the environment, because other processes of pip do not get our arguments. pip starts a
# pip for build dependencies, and builds start more.
env.update(PIP_INDEX_URL=plan['url'], PIP_EXTRA_INDEX_URL=' '.join(plan.get('more') or []), PIP_TRUSTED_HOST=' '.join(plan.get('plain') or []),
           PIP_RETRIES='1', PIP_TIMEOUT='15', PIP_NO_INPUT='1', PIP_DISABLE_PIP_VERSION_CHECK='1')
if plan.get('ca'):
    env.update(dict.fromkeys(plan['authorities'], os.path.join(here, 'ca.pem')))
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
    site.main()  # make Python search the folder that pip has just created
    asked = {plain_name(spec) for spec in plan['specs']}
    for p in lock:  # with a lock file, pip was asked for all packages, and has marked all
        if plain_name(p['name']) not in asked:
            unask(p['name'])
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
