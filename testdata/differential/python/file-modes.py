import os
os.umask(0o027)
open('f', 'w').close(); os.mkdir('d')
print(oct(os.stat('f').st_mode), oct(os.stat('d').st_mode), os.access('f', os.X_OK))
os.rename('f', 'd/g'); os.link('d/g', 'h'); print(os.stat('h').st_nlink, os.path.samefile('h', 'd/g'), sorted(e.name for e in os.scandir('.') if e.is_dir()))
os.utime('h', (1, 2)); print(os.stat('h').st_mtime, os.stat('h').st_atime)
os.rmdir('d')
