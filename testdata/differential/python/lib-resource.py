import resource, os, time, platform, sysconfig
print(resource.getrlimit(resource.RLIMIT_CORE)[0] in (0, resource.RLIM_INFINITY), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 1000, platform.python_version(), platform.system(), platform.python_implementation(), platform.machine() == os.uname().machine, sysconfig.get_paths()['stdlib'])
t = time.perf_counter(); time.sleep(0.02); print(time.perf_counter() - t >= 0.02, time.monotonic() > 0, time.process_time() > 0, time.gmtime(0)[:6], time.get_clock_info('time').adjustable, abs(time.time() - time.clock_gettime(0)) < 1)
print(platform.freedesktop_os_release()['ID'], sysconfig.get_platform())
