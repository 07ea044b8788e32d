import asyncio
async def bad():
    await asyncio.sleep(0)
    raise ValueError('in a task')
async def main():
    t = asyncio.create_task(bad())
    await asyncio.sleep(0.01)
    await t
asyncio.run(main())
