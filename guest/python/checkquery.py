# Checks that the statements of a file in SQL, the first argument, are whole, and runs nothing of them.
import sqlite3
import sys

with open(sys.argv[1], encoding='utf-8-sig') as f:
    text = f.read().strip()
if text and not sqlite3.complete_statement(text + '\n;'):
    sys.exit(f'{sys.argv[1]}: the last statement is not whole')
