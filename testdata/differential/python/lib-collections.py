from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple
import bisect, heapq, itertools, functools, operator
P = namedtuple('P', 'x y', defaults=[0]); print(P(1), P(1)._replace(y=5), Counter('abracadabra').most_common(2), defaultdict(list, a=[1]), deque(range(5), 3), ChainMap({'a': 1}, {'b': 2}), OrderedDict(a=1))
h = [5, 1, 4]; heapq.heapify(h); print(heapq.heappop(h), h, bisect.bisect([1, 2, 3], 2), list(itertools.pairwise('abc')), [(k, list(g)) for k, g in itertools.groupby('aab')], functools.reduce(operator.mul, range(1, 6)))
@functools.lru_cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
print(fib(80), fib.cache_info(), functools.partial(int, base=2)('101'))
P(1, 2, 3)
