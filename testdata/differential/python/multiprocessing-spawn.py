import multiprocessing as mp
from multiprocessing import shared_memory
def work(conn): conn.send({'name': __name__}); conn.close()
if __name__ == '__main__':
    ctx = mp.get_context('spawn')
    a, b = ctx.Pipe()
    p = ctx.Process(target=work, args=(b,)); p.start()
    print(a.recv()); p.join(); print(p.exitcode)
    m = shared_memory.SharedMemory(create=True, size=10); m.buf[0] = 7
    print(m.buf[0]); m.close(); m.unlink()
