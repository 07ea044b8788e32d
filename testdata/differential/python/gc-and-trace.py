import gc, sys, tracemalloc, threading
print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.garbage, gc.callbacks, gc.get_debug(), sys.gettrace(), sys.getprofile(), sys.getallocatedblocks() > 1000, tracemalloc.is_tracing())
print(threading.gettrace(), sys.getrefcount(object()), sys.get_coroutine_origin_tracking_depth(), sys.getdlopenflags(), hasattr(sys, 'last_value'), hasattr(sys, 'ps1'))
events = []
def tr(f, e, a): events.append((e, f.f_code.co_name)); return tr
def x(): return 1
sys.settrace(tr); x(); sys.settrace(None); print(events)
