import asyncio
async def serve(r, w):
    w.write((await r.readline()).upper()); await w.drain(); w.close()
async def main():
    s = await asyncio.start_server(serve, '127.0.0.1', 0)
    r, w = await asyncio.open_connection(*s.sockets[0].getsockname())
    w.write(b'hello\n'); print(await r.read()); w.close()
    s.close(); await s.wait_closed()
    p = await asyncio.create_subprocess_exec(__import__('sys').executable, '-c', 'print(input()[::-1])', stdin=-1, stdout=-1)
    print(await p.communicate(b'abc\n'), p.returncode)
asyncio.run(main())
