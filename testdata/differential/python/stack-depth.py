import sys, traceback
def depth(n=0):
    f = sys._getframe()
    while f: n += 1; f = f.f_back
    return n
print(depth()); traceback.print_stack(); print(len(traceback.extract_stack()))
