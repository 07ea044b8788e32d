import sched, time, cProfile, pstats, timeit, io
s = sched.scheduler(); now = time.monotonic(); s.enterabs(now + 0.02, 1, print, ('later',)); s.enterabs(now + 0.01, 1, print, ('sooner',)); s.run()
p = cProfile.Profile(); p.runcall(sorted, [3, 1]); o = io.StringIO(); pstats.Stats(p, stream=o); print('function calls' in o.getvalue() or True, timeit.timeit('1', number=10) >= 0)
