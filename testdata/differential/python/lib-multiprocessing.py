import multiprocessing as mp, os
def work(n, q): q.put((n, os.getppid() != 1 or True))
def double(x): return 2 * x
if __name__ == '__main__':
    print(mp.get_start_method(), len(mp.current_process().authkey), mp.current_process().name)
    q = mp.Queue()
    ps = [mp.Process(target=work, args=(i, q)) for i in range(3)]
    [p.start() for p in ps]
    print(sorted(q.get() for _ in ps))
    [p.join() for p in ps]
    print([p.exitcode for p in ps])
    with mp.Pool(2) as pool:
        print(pool.map(double, range(5)))
    v, a = mp.Value('i', 3), mp.Array('d', 2)
    with v.get_lock(): v.value += 1
    print(v.value, a[:])
