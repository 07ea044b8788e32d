import base64, configparser, email.message, mimetypes, plistlib, quopri, sys, tomllib
c = configparser.ConfigParser(); c.read_string('[a]\nx = 1\ny = %(x)s2\n'); print(dict(c['a'])); c.write(sys.stdout); print(tomllib.loads('a = 1\n[b]\nc = [1.5, 2020-01-01]'), base64.b85encode(b'hello'), mimetypes.guess_type('a.tar.gz'))
m = email.message.EmailMessage(); m['Subject'] = 'Grüße'; m.set_content('tëxt'); print(m); print(plistlib.dumps({'a': [1, True]}).decode(), quopri.encodestring('ü'.encode()))
tomllib.loads('a = ')
