import sys
print(sys.flags)
print(sys.version_info, sys.implementation.name, sys.byteorder, sys.maxsize)
print(sys.executable, sys.prefix, sys.exec_prefix, sys.base_prefix, sys.platform, sys.pycache_prefix)
print(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), sys.getdefaultencoding(), sys.dont_write_bytecode)
print(sys.warnoptions, sys._xoptions, sys.getrecursionlimit(), sys.getswitchinterval())
