import asyncio
async def work(n):
    await asyncio.sleep(0.1 * (3 - n))
    return n
async def main():
    print(await asyncio.gather(*(work(i) for i in range(3))))
    async with asyncio.TaskGroup() as g:
        t = g.create_task(work(1))
    print(t.result())
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    except TimeoutError as e:
        print(repr(e))
    q = asyncio.Queue()
    await q.put(1); print(await q.get())
    print(await asyncio.to_thread(len, 'abc'))
asyncio.run(main())
