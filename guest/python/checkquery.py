# Checks that the SQL statements of a file, the first argument, are complete, and runs none of them.
import sqlite3
import sys

with open(sys.argv[1], encoding='utf-8-sig') as f:
    try:
        text = f.read().strip()
        whole = not text or sqlite3.complete_statement(text + '\n;')
    except ValueError as error:
        sys.exit(f'{sys.argv[1]}: {error}')
if not whole:
    sys.exit(f'{sys.argv[1]}: the last statement is not whole')
