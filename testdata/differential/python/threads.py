import queue, threading, time
lock, results, q = threading.Lock(), [], queue.Queue()
def work(n):
    for i in range(100):
        with lock:
            results.append(n)
    q.put(n)
ts = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]
print(len(results), sorted(q.queue), threading.active_count(), threading.main_thread() is threading.current_thread())
event = threading.Event()
threading.Timer(0.01, event.set).start()
print(event.wait(10))
local = threading.local(); local.x = 1
b = threading.Barrier(3)
for i in range(2): threading.Thread(target=b.wait).start()
b.wait()
print('through', threading.current_thread().name)
