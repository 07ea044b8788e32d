import select, selectors, socket, threading
s = socket.create_server(('127.0.0.1', 0)); port = s.getsockname()[1]
def serve():
    c, _ = s.accept()
    with c: c.sendall(c.recv(100)[::-1]); print('server', repr(c.recv(100)))
t = threading.Thread(target=serve); t.start()
with socket.create_connection(('localhost', port)) as c: c.sendall(b'hello'); print(c.recv(100)); c.shutdown(socket.SHUT_WR); t.join()
a, b = socket.socketpair(); a.send(b'x'); print(b.recv(5), selectors.DefaultSelector().__class__.__name__)
u = socket.socket(socket.AF_UNIX); u.bind('u.sock'); u.listen(); v = socket.socket(socket.AF_UNIX); v.connect('u.sock'); print(v.getpeername())
d = socket.socket(type=socket.SOCK_DGRAM); d.bind(('127.0.0.1', 0)); d.sendto(b'self', d.getsockname()); print(d.recv(10))
print(socket.getaddrinfo('127.0.0.1', 80, type=socket.SOCK_STREAM))
socket.create_connection(('127.0.0.1', 1))
