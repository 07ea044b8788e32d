# Checks the syntax of a program, as `python3 -m py_compile FILE` does, and runs none of it.
import os
import py_compile
import sys
import tempfile

with tempfile.TemporaryDirectory() as out:
    try:
        py_compile.compile(sys.argv[1], cfile=os.path.join(out, 'code.pyc'), doraise=True)
    except py_compile.PyCompileError as e:
        sys.stderr.write(e.msg)
        sys.exit(1)
