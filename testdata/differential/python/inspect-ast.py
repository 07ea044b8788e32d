import ast, dis, inspect, sys, tokenize, io
def f(a, /, b: int = 2, *c, d=3, **e) -> str:
    """Doc."""
    return a
print(inspect.signature(f), inspect.getsource(f), inspect.getdoc(f), ast.dump(ast.parse('x = [1]'), indent=1), ast.unparse(ast.parse('a  if b else(c)')), ast.literal_eval("{'a': (1, None)}"))
dis.dis(lambda x: x + 1)
print(sys._getframe().f_code.co_filename == __file__, sys._getframe().f_back, inspect.stack()[0].lineno, [t.string for t in tokenize.generate_tokens(io.StringIO('a+1').readline)])
