const u = new URL('https://user:pw@example.com:8443/a/b/../c?q=1&q=2#frag');
u.searchParams.append('x', 'y z');
console.log(u.href, u.searchParams.getAll('q'), Object.fromEntries(new URLSearchParams('a=1&b=2')), URL.canParse('nope'));
