# Runs one file of a package's tests (argv[2], below the folder argv[1]) with pytest. Prints the outcome
# of each test, one a line, to the original standard output. The installed package is tested. The
# folder has the tests if the package does not.
import importlib
import json
import os
import sys

import pytest

root, name = sys.argv[1:]
out = os.dup(1)


def say(test, verdict, reason=''):
    line = json.dumps({'id': test.partition('::')[2] or test, 'verdict': verdict, 'reason': reason.strip().partition('\n')[0][:200]})
    os.write(out, ('\nunitask-test ' + line + '\n').encode())


def reason(report):
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, 'reprcrash', None)
    return crash.message if crash else str(report.longrepr or '')


class Recorder:
    def pytest_collectreport(self, report):
        if report.outcome != 'passed':
            say(name, 'fail' if report.failed else 'skip', reason(report))

    def pytest_runtest_logreport(self, report):
        if hasattr(report, 'wasxfail'):
            say(report.nodeid, 'pass', 'fails as expected' if report.skipped else 'expected to fail, and passes')
        elif report.when == 'call' or report.outcome != 'passed':
            say(report.nodeid, {'passed': 'pass', 'skipped': 'skip', 'failed': 'fail'}[report.outcome], reason(report))


folders = name.split('/')[:-1]
for n in range(1, folders.index('tests') + 1):
    module = importlib.import_module('.'.join(folders[:n]))
    module.__path__.append(os.path.join(root, *folders[:n]))
# f2py's tests find their files relative to the package.
if name.startswith('numpy/f2py/') and not os.path.exists(os.path.join(os.path.dirname(module.__file__), 'tests')):
    module.__file__ = os.path.join(root, *folders[:n], '__init__.py')
sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-c', os.devnull, '--rootdir', root, '--confcutdir', root, os.path.join(root, name)], [Recorder()]))
