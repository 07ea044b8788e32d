# Starts one machine of Quicksand, and prints a word (first argument) in it N times (second argument). The shell
# prints it, because Quicksand's Alpine image has no Python.
import asyncio
import sys

from quicksand import Sandbox

word, times = sys.argv[1], int(sys.argv[2])


async def main():
    # accel=None means emulation. Without it, machines would end at once on a host whose /dev/kvm does not work.
    async with Sandbox(image="alpine", accel=None) as machine:
        for _ in range(times):
            print((await machine.execute(f"echo {word} $((6*7))")).stdout.strip())


asyncio.run(main())
