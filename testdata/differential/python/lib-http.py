import http.client, http.server, json, threading, urllib.error, urllib.parse, urllib.request
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({'path': self.path}).encode(); self.send_response(404 if 'no' in self.path else 200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H); threading.Thread(target=s.serve_forever, daemon=True).start()
u = f'http://127.0.0.1:{s.server_port}'
print(urllib.request.urlopen(u + '/?' + urllib.parse.urlencode({'a': 'ü b'})).read())
try: urllib.request.urlopen(u + '/no')
except urllib.error.HTTPError as e: print(e, e.code, e.read())
c = http.client.HTTPConnection('127.0.0.1', s.server_port); c.request('GET', '/x'); r = c.getresponse(); print(r.status, r.reason, r.getheader('content-length')); s.shutdown()
print(urllib.parse.urlsplit('https://u:p@h:1/p;x?q=1#f'))
