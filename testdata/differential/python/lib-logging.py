import logging, logging.handlers, sys
l = logging.getLogger('a.b'); h = logging.StreamHandler(sys.stdout); h.setFormatter(logging.Formatter('%(asctime)s|%(relativeCreated)d|%(message)s|%(threadName)s|%(processName)s', '%Y')); l.addHandler(h); l.setLevel(10)
l.debug('%s', 'x') if False else None
logging.warning('to stderr'); l.warning('w %d', 1) if False else None
logging.getLogger('c').critical('last resort?'); print(l, logging.getLevelName(35), logging._startTime > 1e9)
logging.error('bad args %d', 'x')
