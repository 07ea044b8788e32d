import contextvars, asyncio
v = contextvars.ContextVar('v', default=0)
async def t(n): v.set(n); await asyncio.sleep(0); return v.get()
async def main(): return await asyncio.gather(t(1), t(2)), v.get()
print(asyncio.run(main()), contextvars.copy_context().get(v))
