import os, pathlib, shutil, stat
p = pathlib.Path('d/e'); p.mkdir(parents=True); (p / 'f.txt').write_text('grüße\n', encoding='utf-8')
print(sorted(map(str, pathlib.Path('d').rglob('*'))), (p / 'f.txt').stat().st_size, (p / 'f.txt').suffix, pathlib.Path('/a/../b').resolve())
os.symlink('e', 'd/l'); print(os.readlink('d/l'), (pathlib.Path('d/l') / 'f.txt').read_bytes(), stat.filemode(os.lstat('d/l').st_mode))
os.chmod(p / 'f.txt', 0o640); print(oct((p / 'f.txt').stat().st_mode)); shutil.copytree('d', 'copy', symlinks=True); print(sorted((d, sorted(a), b) for d, a, b in os.walk('copy')))
shutil.make_archive('a', 'gztar', 'd'); shutil.rmtree('d'); print(os.path.exists('d'), sorted(os.listdir('.')))
pathlib.Path('none/x').read_text()
