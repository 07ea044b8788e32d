# Regular expressions over a big text: a log of 6 MB.
import collections
import random
import re

rng = random.Random(7)
paths = ['/', '/login', '/api/items', '/static/app.js']
lines = [f'10.0.{rng.randrange(4)}.{rng.randrange(256)} - - [22/Nov/2026:16:{i // 60 % 60:02}:{i % 60:02} +0000] "GET {rng.choice(paths)} HTTP/1.1" {rng.choice([200, 200, 200, 404, 500])} {rng.randrange(10**5)}' for i in range(2000)]
text = '\n'.join(lines * 40)
line = re.compile(r'^(?P<ip>\S+) \S+ \S+ \[(?P<at>[^\]]+)\] "(?P<method>[A-Z]+) (?P<path>\S+) [^"]*" (?P<status>\d{3}) (?P<bytes>\d+)$', re.M)
found = collections.Counter(m['status'] for m in line.finditer(text))
want = collections.Counter(l.split('"')[2].split()[0] for l in lines)
assert found == {k: 40 * v for k, v in want.items()}, (found, want)
print(len(text) > 5_000_000, sum(found.values()), sorted(found))
print(len(re.findall(r'\b500\b (?=\d+$)', text, re.M)) == found['500'], re.sub(r'(\d+)\.(\d+)\.\d+\.\d+', r'\1.\2.x.x', lines[0])[:9])
