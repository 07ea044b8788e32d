import ast
try:
    compile('x = 1\0', '<s>', 'exec')
except Exception as e:
    print(type(e), e)
try:
    ast.parse('f(1 2)')
except SyntaxError as e:
    print(e, e.lineno, e.offset, e.end_offset, e.text)
