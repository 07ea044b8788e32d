# Checks that the first argument is a notebook, and runs none of it.
import json
import sys

with open(sys.argv[1], encoding='utf-8') as f:
    try:
        for cell in json.load(f)['cells']:
            ''.join(cell['source']), cell['cell_type']
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        sys.exit(f'{sys.argv[1]} is no notebook of format 4: {type(error).__name__}: {error}')
