# Runs the steps of a session in one interpreter. The driver's own names are local to a function, and
# the steps use the names of __main__.
def _drive():
    import __future__, ast, asyncio, builtins, inspect, linecache, os, signal, sys, traceback, types
    main = types.ModuleType('__main__')
    main.__builtins__ = builtins
    sys.modules['__main__'] = main
    sys.argv = ['']
    sys.path[0] = ''
    try:
        os.set_inheritable(3, False)
        box = os.fdopen(3, 'rb+', 0)
    except OSError:
        return
    at, steps, loop, flags = b'', 0, None, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    futures = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
    most, own, busy = 60 << 10, os.getpid(), False

    # A Ctrl-C that comes too late for its step has no effect.
    def interrupted(number, frame):
        if busy:
            raise KeyboardInterrupt
    signal.signal(signal.SIGINT, interrupted)

    def shown(value):
        if value is None:
            return ''
        builtins._ = value
        return repr(value)

    # encoded returns a value as the host expects it: cut to a limited number of bytes, and without NULs.
    def encoded(text):
        data = text.encode('utf-8', 'backslashreplace').replace(b'\0', b'\\x00')
        return data if len(data) <= most else data[:most].decode('utf-8', 'ignore').encode() + '…'.encode()

    def await_(coroutine):
        nonlocal loop
        if loop is None:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # otherwise the task would continue in the next step that awaits
                task.cancel()
                try:
                    loop.run_until_complete(task)
                except asyncio.CancelledError:
                    pass
            raise

    # Imports from __future__ apply to all later code, also in later steps.
    def call(tree, name):
        nonlocal flags
        made = compile(tree, name, 'eval' if isinstance(tree, ast.Expression) else 'exec', flags=flags, dont_inherit=True)
        flags |= made.co_flags & futures
        result = eval(made, main.__dict__)
        return await_(result) if made.co_flags & inspect.CO_COROUTINE else result

    def step(code, name):
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree = compile(code, name, 'exec', flags=flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        if tree.body:
            call(tree, name)
        return shown(call(last, name)) if last else ''

    def tell_exception(error):
        # Print the exception as the interpreter does, without the frames of this file.
        tb = error.__traceback__
        while tb and tb.tb_frame.f_code.co_filename == __file__:
            tb = tb.tb_next
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, tb)
        else:
            traceback.print_exception(type(error), error, tb)

    # Code may have replaced the functions and streams that show an exception, which may then fail.
    def told(tell, *what):
        try:
            tell(*what)
        except BaseException:
            pass

    # exit() closes standard input, which later steps need.
    def reopen():
        if sys.stdin.closed:
            sys.stdin = open(0, closefd=False)

    # A fork needs different random numbers. Modules that code imports later draw new seeds themselves.
    def renew(seed):
        have = sys.modules.get
        if have('_ssl'):
            have('_ssl').RAND_add(seed, float(len(seed)))
        if have('random'):
            have('random').seed(seed[:32])
        if have('numpy.random'):
            have('numpy.random').seed(list(seed[32:48]))
        if have('tempfile'):
            have('tempfile')._name_sequence = None
        if have('uuid'):  # use Python's generator instead of libuuid's, which does not notice forks
            have('uuid')._generate_time_safe = have('uuid')._last_timestamp = None
            have('uuid')._node = int.from_bytes(seed[48:54], 'big') | 1 << 40

    __file__ = tell_exception.__code__.co_filename
    while True:
        parts, ends = [at], at.count(b'\0')
        while ends < 2:
            parts.append(box.read(65536))
            if not parts[-1]:
                return
            ends += parts[-1].count(b'\0')
        head, code, at = b''.join(parts).split(b'\0', 2)
        parts = None
        status, value = 0, ''
        try:
            try:
                busy = True
                if head == b'fork':
                    renew(bytes.fromhex(code.decode()))
                else:
                    steps += 1
                    value = step(code.decode(), '<step %d>' % steps)
            finally:
                busy = False
        except SystemExit as error:
            told(reopen)
            if error.code is None or isinstance(error.code, int):
                status = (error.code or 0) & 255
            else:
                told(lambda: print(error.code, file=sys.stderr))
                status = 1
        except BaseException as error:
            told(tell_exception, error)
            status = 130 if isinstance(error, KeyboardInterrupt) else 1
        for stream in sys.stdout, sys.stderr:
            if stream is not None:
                told(lambda: stream.flush())
        if os.getpid() != own:  # a child process that the step has forked also comes here
            os._exit(status)
        answer = b'%d\0%s\0' % (status, encoded(value))
        while answer:
            answer = answer[box.write(answer):]


_drive()
