import sys
print('grüße', '日本語', '\U0001f600', '\u202e', ascii('é'), 'a\tb\r')
print(repr('\udc80'), '\N{GREEK SMALL LETTER ALPHA}'.upper())
sys.stdout.reconfigure(encoding='latin-1', errors='replace')
print('ä€')
print('\udc80')
