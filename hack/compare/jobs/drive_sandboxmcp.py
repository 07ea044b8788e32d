# Starts sandboxmcp's MCP server, and makes it run a program (first argument) N times (second argument). The runs
# come one after the other, or all at once if the third argument is "together".
import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

program, times, together = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "together"


async def main():
    server = StdioServerParameters(command=os.path.join(os.path.dirname(sys.executable), "sandboxmcp"), args=["serve"])
    async with stdio_client(server) as streams, ClientSession(*streams) as client:
        await client.initialize()

        async def call():
            answer = await client.call_tool("execute_code", {"code": open(program).read(), "language": "python"})
            print("".join(part.text for part in answer.content))

        if together:
            await asyncio.gather(*(call() for _ in range(times)))
        else:
            for _ in range(times):
                await call()


asyncio.run(main())
