# A program with the Python SDK: every list, every tool, every kind of resource. It prints the results.
import asyncio
import base64
import json
import os
import sys

import mcp
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
import mcp.types as types

at, prompts = sys.argv[1:3]
CODE = 'import sys\nopen("/out/bytes", "wb").write(bytes([0, 1]))\nopen("/out/none", "w")\nprint("é")'


def plain(model):
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def server():
    return StdioServerParameters(command=at, args=["mcp", "--pool", "0", "--prompts", prompts], env=dict(os.environ))


async def use(client):
    found = {}
    found["Tools"] = sorted(t["name"] for t in plain(await client.list_tools())["tools"])
    found["Resources"] = [r["uri"] for r in plain(await client.list_resources())["resources"]]
    templates = [t["uriTemplate"] for t in plain(await client.list_resource_templates())["resourceTemplates"]]
    found["Templates"] = len(templates)
    found["Prompts"] = [p["name"] for p in plain(await client.list_prompts())["prompts"]]
    found["Prompt"] = plain(await client.get_prompt("hello"))["messages"][0]["content"]["text"]

    async def call(tool, progress=None, /, **arguments):
        got = plain(await client.call_tool(tool, arguments, progress_callback=progress))
        return got["structuredContent"]

    run = await call("run_code", language="python", code=CODE, files=[{"name": "beside.txt", "content": "x"}])
    run = run["runId"]
    found["Read"] = {}
    for part in ["", "/code", "/stdout", "/stderr", "/netlog", "/console", "/inlineFiles", "/artifacts/bytes", "/artifacts/none"]:
        (got,) = plain(await client.read_resource(f"unitask://runs/{run}{part}"))["contents"]
        found["Read"][part] = base64.b64decode(got["blob"]).hex() if "blob" in got else got["text"]
    for part in ["", "/code", "/inlineFiles"]:
        found["Read"][part] = "true" if found["Read"][part] else "false"
    (images,) = plain(await client.read_resource("unitask://images"))["contents"]
    found["Images"] = len(json.loads(images["text"])) > 0
    found["Listed"] = [r["id"] for r in (await call("list_runs"))["runs"]] == [run]
    found["Inspected"] = (await call("inspect_run", runId=run))["id"] == run
    ref = {"type": "ref/resource", "uri": templates[0]}
    completed = await client.complete(types.ResourceTemplateReference(**ref), {"name": "id", "value": run[:4]})
    found["Completed"] = plain(completed)["completion"]["values"] == [run]

    said = []

    async def progress(done, total, message):
        said.append(message or "")

    failed = await call("run_code", progress, language="python", code='import sys, time\nprint("one", flush=True)\ntime.sleep(.3)\nprint("two", flush=True)\ntime.sleep(.3)\nsys.exit(7)')
    found["Exit"] = failed["exitCode"]
    found["Progress"] = "one\ntwo\n" in "".join(said)

    began = asyncio.Event()

    async def begun(done, total, message):
        if "begun" in (message or ""):
            began.set()

    long = asyncio.create_task(call("run_code", begun, language="python", code='import time\nprint("begun", flush=True)\ntime.sleep(600)'))
    await began.wait()
    long.cancel()
    while (await call("list_runs", limit=1))["runs"][0]["status"] == "running":
        await asyncio.sleep(.1)
    found["Cancelled"] = (await call("list_runs", limit=1))["runs"][0]["outcome"]

    session = (await call("run_code", language="python", session="new", code="n = 41"))["session"]
    found["Value"] = (await call("run_code", language="python", session=session, code="n + 1"))["value"]
    found["Command"] = (await call("session_command", session=session, command="echo hi"))["stdout"]
    await call("session_files", session=session, op="create", path="a.txt", file_text="one\n")
    found["File"] = "one" in json.dumps(await call("session_files", session=session, op="view", path="a.txt"))
    behind = (await call("session_command", session=session, command="echo on; sleep 600", background=True))["runId"]
    await call("manage_session", op="stop", session=session, run=behind)
    found["Waited"] = (await call("wait_command", run=behind))["outcome"]
    await call("manage_session", op="put", session=session, name="x", value={"y": [1, None]})
    found["Put"] = json.dumps((await call("manage_session", op="get", session=session, name="x"))["value"], separators=(",", ":"))
    found["Sessions"] = len((await call("manage_session", op="list"))["sessions"])
    await call("manage_session", op="end", session=session)
    found["Doctor"] = "checks" in (await call("unitask_doctor"))
    found["Wrong"] = plain(await client.call_tool("run_code", {"language": "python", "code": 1}))["isError"]
    print(json.dumps(found))


async def main():
    if hasattr(mcp, "Client"):
        async with mcp.Client(at if at.startswith("http") else server()) as client:
            return await use(client)
    if at.startswith("http"):
        from mcp.client.streamable_http import streamablehttp_client
        transport = streamablehttp_client(at)
    else:
        transport = stdio_client(server())
    async with transport as streams, ClientSession(*streams[:2]) as client:
        await client.initialize()
        await use(client)


asyncio.run(main())
