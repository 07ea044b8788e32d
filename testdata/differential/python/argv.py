import sys
print(len(sys.argv), sys.argv[1:])
print(sys.argv[0] == __file__, sys.orig_argv[0], sys.orig_argv[1:] == sys.argv)
