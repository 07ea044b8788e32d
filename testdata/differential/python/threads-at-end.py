import threading, time
def late():
    time.sleep(0.2)
    print('a thread outlives main')
threading.Thread(target=late).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print('main ends')
