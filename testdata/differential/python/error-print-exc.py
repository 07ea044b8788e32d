import logging, sys, traceback
try:
    [].pop()
except IndexError:
    traceback.print_exc()
    print(traceback.format_exc().count('\n'))
traceback.print_stack(file=sys.stdout)
logging.basicConfig(format='%(levelname)s %(name)s %(lineno)d %(message)s', level=logging.INFO)
logging.info('info'); logging.error('error %s', 1)
try:
    1 / 0
except ZeroDivisionError:
    logging.exception('with a traceback')
