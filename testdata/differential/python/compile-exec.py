ns = {}
exec(compile('def f():\n    raise ValueError("from exec")', '<made up>', 'exec'), ns)
print(eval('1 + x', {'x': 2}), sorted(k for k in ns if k != '__builtins__'))
ns['f']()
