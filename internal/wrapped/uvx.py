# Starts a program of the installed packages, as uvx does.
import importlib.metadata
import sys

if sys.path[0] == "":
    del sys.path[0]
name = sys.argv[1]
scripts = {e.name: e for e in importlib.metadata.entry_points(group="console_scripts")}
if name not in scripts:
    there = ", ".join(sorted(scripts)) or "none"
    sys.exit(f"unitask: no package has the program {name}; programs: {there}; uvx --from PACKAGE PROGRAM names one")
sys.argv = [name, *sys.argv[2:]]
start = scripts[name].load()
del name, scripts
sys.exit(start())
