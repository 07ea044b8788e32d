# The throw-away program does what nearly every program does. Before the user's program comes, that
# code is then in memory, and the emulator has translated it. The throw-away program must not draw a
# random number or start a thread, because every clone would have the same. python.c undoes its
# imports.
import collections
import datetime
import json
import os
import re
import sys


class Point:
    def __init__(self, x, y=2):
        self.x, self.y = x, y

    def __repr__(self):
        return f'Point({self.x!r}, {self.y:>3})'


def count(n):
    for i in range(n):
        yield i


print('rehearsal', [1, {'a': 'b'}], (None, True, 1.5), {1, 2}, Point(1), sep=', ')
print('rehearsal', sys.platform, os.getpid(), len(sys.argv), file=sys.stderr)
os.path.abspath(os.path.join('x', '..', os.path.basename(__file__)))
with open(__file__, encoding='utf-8') as f:
    words = collections.Counter(re.findall(r'\w+', f.read()))
json.loads(json.dumps({'a': [1, 'x', None, *count(3)], 'b': 1.5}, indent=1))
sorted('rehearsal'.upper(), key=lambda c: words[c])
'%s %5.2f {} {:>8}'.replace('%', '').format(sum(i * i for i in range(10)), 10**30)
datetime.timedelta(days=1).total_seconds()
try:
    raise ValueError('x')
except ValueError as e:
    str(e), e.__traceback__.tb_lineno
