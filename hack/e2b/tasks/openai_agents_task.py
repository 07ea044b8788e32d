"""The OpenAI Agents SDK's E2BSandboxClient: a manifest, commands, files, a terminal, and a saved workspace."""
import asyncio
import io
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox import Manifest
from agents.sandbox.entries import File


async def main():
    client = E2BSandboxClient()
    manifest = Manifest(entries={"notes/hello.txt": File(content=b"hello\n")})
    session = await client.create(manifest=manifest, options=E2BSandboxClientOptions(sandbox_type="e2b", timeout=300))
    async with session:
        got = await session.exec("cat", "notes/hello.txt")
        assert got.stdout == b"hello\n", got.stdout
        await session.write(Path("x.py"), io.BytesIO(b"print(6*7)\n"))
        got = await session.exec("python3 x.py", shell=True)
        assert got.stdout.strip() == b"42", got.stdout
        terminal = await session.pty_exec_start("bash", "-i", tty=True)
        said = await session.pty_write_stdin(session_id=terminal.process_id, chars="echo $((20+22))\n")
        assert b"42" in said.output, said
        saved = (await session.persist_workspace()).read()
        await session.exec("rm -rf notes x.py", shell=True)
        await session.hydrate_workspace(io.BytesIO(saved))
        assert (await session.read(Path("x.py"))).read() == b"print(6*7)\n"
    await client.delete(session)


asyncio.run(main())
