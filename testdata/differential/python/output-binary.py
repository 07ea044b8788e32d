import sys
sys.stdout.buffer.write(bytes(range(256)) * 300)
sys.stderr.buffer.write(b'\xff\xfe\x00')
