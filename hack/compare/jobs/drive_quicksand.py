# Starts one machine of Quicksand, and runs hello in it so many times. Its Alpine image has no Python.
import asyncio
import sys

from quicksand import Sandbox

word, times = sys.argv[1], int(sys.argv[2])


async def main():
    # accel=None is emulation: on a host whose /dev/kvm does not work, its machines would end at once.
    async with Sandbox(image="alpine", accel=None) as machine:
        for _ in range(times):
            print((await machine.execute(f"echo {word} $((6*7))")).stdout.strip())


asyncio.run(main())
