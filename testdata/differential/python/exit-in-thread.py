import sys, threading
def work():
    sys.exit(5)
t = threading.Thread(target=work)
t.start(); t.join()
print('main goes on')
