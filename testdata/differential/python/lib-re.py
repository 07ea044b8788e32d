import re
print(re.findall(r'(?P<a>\w+)@(\w+)', 'me@here you@there'), re.sub(r'(?<=a)b+', lambda m: str(len(m[0])), 'abbb ab b'))
print(re.compile(r'(?i)x(?#c)y*', re.M), re.fullmatch('[^\\W\\d_]+', 'größe'), re.split(r'\s*[,;]\s*', 'a , b;c'))
re.compile('(unclosed')
