import argparse
p = argparse.ArgumentParser(description='Does things.', epilog='end'); p.add_argument('n', type=int, nargs='+'); p.add_argument('--v', '-v', action='count', default=0, help='more'); s = p.add_mutually_exclusive_group(); s.add_argument('--a', choices='xy'); s.add_argument('--b', action='store_true')
print(p.parse_args(['1', '2', '-vv', '--a', 'x'])); p.print_help()
p.parse_args(['one'])
