from concurrent.futures import ThreadPoolExecutor, ProcessPoolExecutor, as_completed
def square(n): return n * n
def bad(n): raise ValueError(n)
if __name__ == '__main__':
    with ThreadPoolExecutor(4) as pool:
        print(list(pool.map(square, range(10))))
        f = pool.submit(bad, 3)
        print(repr(f.exception()), f.done())
    with ProcessPoolExecutor(2) as pool:
        print(sorted(f.result() for f in as_completed([pool.submit(square, i) for i in range(5)])))
