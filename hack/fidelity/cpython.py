# Runs one file of CPython's own suite (argv[1]) as `python3 -m test` does, in the folder with the
# package test. It prints the outcome of each test, one a line, to the original standard output.
import json
import os
import sys

sys.path[0] = os.getcwd()
from test.libregrtest.main import Regrtest
from test.support import testresult
from unittest.case import _SubTest

name = sys.argv[1]
out = os.dup(1)


def say(test, verdict, reason=''):
    os.write(out, ('\nunitask-test ' + json.dumps({'id': test, 'verdict': verdict, 'reason': reason}) + '\n').encode())


def last(err):
    text = str(err[1]).strip().partition('\n')[0]
    return '%s: %s' % (err[0].__name__, text[:200])


class Result(testresult.RegressionTestResult):
    def record(self, test, verdict, reason=''):
        if isinstance(test, _SubTest):
            test = test.test_case
        say(test.id() if hasattr(test, 'id') else str(test), verdict, reason)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.record(test, 'pass')

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.record(test, 'pass')

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.record(test, 'fail', 'succeeds unexpectedly')

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.record(test, 'skip', str(reason))

    def addError(self, test, err):
        super().addError(test, err)
        self.record(test, 'fail', last(err))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.record(test, 'fail', last(err))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.record(test, 'fail', last(err))


# Processes that a test starts import this file again.
if __name__ == '__main__':
    testresult.RegressionTestResult = Result
    run = Regrtest()
    try:
        run.main([name])
    except SystemExit as e:
        # A file that needs a denied resource or another system is skipped as a whole.
        say(name, 'skip' if run.skipped or run.resource_denieds else 'pass' if e.code == 0 else 'fail')
        sys.stdout.flush()
        raise
