# Runs the SQL statements of a file, the first argument, in SQLite, and prints the selected rows as
# tables. The second argument names the database. By default, the database is the only one in the
# working directory, beside the file, or in their folders. If there is none, it is in memory.
import glob
import os
import re
import sqlite3
import sys
import unicodedata

ENDINGS = ('.db', '.db3', '.sqlite', '.sqlite3')
UNNEEDED = ('mode', 'headers', 'header', 'width', 'nullvalue', 'timer', 'echo', 'bail', 'changes', 'quit', 'exit')


def database(path, args):
    if args:
        return args[0]
    found = set()
    for folder in (os.getcwd(), os.path.dirname(os.path.abspath(path))):
        for below in ('*', '*/*'):
            found.update(name for name in glob.glob(os.path.join(glob.escape(folder), below)) if name.endswith(ENDINGS))
    if len(found) > 1:
        sys.exit(f'there are several databases, {", ".join(sorted(found))}: name one behind --')
    return found.pop() if found else ':memory:'


def connect(name):
    if name == ':memory:' or not os.path.exists(name) or os.access(name, os.W_OK):
        return sqlite3.connect(name, isolation_level=None)
    # Nothing changes a run's input, because it is read-only.
    quoted = name.replace('%', '%25').replace('?', '%3f').replace('#', '%23')
    return sqlite3.connect(f'file:{quoted}?immutable=1', uri=True, isolation_level=None)


TOKENS = re.compile(r"""(\s+|--[^\n]*|/\*.*?(?:\*/|\Z))|'[^']*'?|"[^"]*"?|`[^`]*`?|\[[^]]*\]?|[^\s;'"`\[/-][^;'"`\[/-]*|.""", re.DOTALL)
LINE = re.compile('.*')


def statements(text):
    """Yield the statements and dot commands of a text, each with the number of its first line."""
    at, number, begin, line = 0, 1, None, 1  # begin and line are those of the current statement
    while at < len(text):
        if begin is None and text[at] == '.' and text[at - 1:at] in ('', '\n'):
            token = LINE.match(text, at)[0]
            yield number, token.strip()
        else:
            match = TOKENS.match(text, at)
            token = match[0]
            if begin is None and not match[1]:
                begin, line = at, number
            if token == ';' and sqlite3.complete_statement(text[begin:at + 1]):
                yield line, text[begin:at + 1]
                begin = None
        at += len(token)
        number += token.count('\n')
    if begin is not None:
        yield line, text[begin:]


def shown(value):
    if value is None:
        return 'NULL'
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def width(text):
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in 'WF') for c in text)


def table(names, rows):
    cells = [[shown(value) for value in row] for row in rows]
    widths = [max(width(row[i]) for row in [names, *cells]) for i in range(len(names))]
    right = [all(isinstance(row[i], (int, float)) or row[i] is None for row in rows) and bool(rows) for i in range(len(names))]

    def line(row):
        padded = (' ' * (widths[i] - width(cell)) + cell if right[i] else cell + ' ' * (widths[i] - width(cell)) for i, cell in enumerate(row))
        print('  '.join(padded).rstrip())

    line(names)
    print('  '.join('-' * n for n in widths))
    for row in cells:
        line(row)
    print(f'({len(rows)} row{"" if len(rows) == 1 else "s"})')


class Run:
    def __init__(self, name):
        self.open(name)
        self.tables = 0

    def open(self, name):
        self.db, self.name = connect(name), name

    def command(self, text):
        """Run a dot command, as SQLite's shell does."""
        name, _, argument = text[1:].rstrip(';').partition(' ')
        argument = argument.strip().strip('"\'')
        if name == 'open':
            self.open(argument)
        elif name == 'read':
            self.file(argument)
        elif name == 'print':
            print(argument)
        elif name in ('tables', 'schema'):
            for row in self.db.execute(f"SELECT {'name' if name == 'tables' else 'sql || char(59)'} FROM sqlite_master WHERE sql NOT NULL "
                                       f"{'AND type IN (' + repr('table') + ',' + repr('view') + ')' if name == 'tables' else ''} ORDER BY name"):
                print(row[0])
        elif name not in UNNEEDED:
            raise sqlite3.OperationalError(f'.{name} is a command of another shell: statements, .open, .read, .print, .tables and .schema run')

    def file(self, path):
        try:
            with open(path, encoding='utf-8-sig') as f:
                text = f.read()
            if '\0' in text:
                raise ValueError('a NUL character is in it')
        except ValueError as error:
            sys.exit(f'{path}: {error}')
        for line, statement in statements(text):
            try:
                if statement.startswith('.'):
                    self.command(statement)
                    continue
                cursor = self.db.execute(statement)
                if cursor.description:
                    if self.tables:
                        print()
                    self.tables += 1
                    table([column[0] for column in cursor.description], cursor.fetchall())
            except (sqlite3.Error, sqlite3.Warning, OSError, ValueError, OverflowError, RecursionError) as error:
                sys.stdout.flush()
                hint = ' (no database is here: --dir brings one)' if self.name == ':memory:' and 'no such table' in str(error) else ''
                sys.exit(f'{path}:{line}: {error}{hint}')


Run(database(sys.argv[1], sys.argv[2:])).file(sys.argv[1])
