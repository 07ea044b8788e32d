import warnings
warnings.simplefilter('always')
def f(): open(__file__)
f()
import asyncio
async def c(): pass
c()
