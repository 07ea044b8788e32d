import difflib, pprint, string, textwrap, shlex, fnmatch, glob, getopt, unicodedata
print(textwrap.fill('the quick brown fox ' * 5, 30), textwrap.dedent('  a\n   b'), string.Template('$a ${b}').substitute(a=1, b=2), ''.join(difflib.unified_diff(['a\n', 'b\n'], ['a\n', 'c\n'])))
pprint.pprint({'k' * 20: list(range(30)), 'a': {'b': 'x' * 90}}); print(shlex.split("a 'b c' d\\ e"), shlex.join(['a b', "c'd"]), fnmatch.filter(['a.py', 'b.c'], '*.py'), unicodedata.name('ß'), unicodedata.normalize('NFD', 'é').encode(), 'ß'.casefold(), 'İ'.lower().encode())
print('{:*^20}|{0!r}'.replace('0', '').format('mid', 'x'), '%(a)05d %%' % {'a': 42}, 'a,b'.partition(','), 'x'.join('abc'), b'%d' % 5, 'ab'.translate({97: 'z'}))
