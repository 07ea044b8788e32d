// What a user of the TypeScript SDK writes: list the tools, run code, see it print.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const at = process.argv[2];
const transport = at.startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(at))
  : new StdioClientTransport({ command: at, args: ["mcp", "--pool", "0"], env: process.env });
const client = new Client({ name: "example", version: "1.0.0" });
await client.connect(transport);

const { tools } = await client.listTools();
const hello = await client.callTool({ name: "run_code", arguments: { code: `console.log("hello from", process.platform)` } });
// The SDK drops progress that it reads together with the result: the code ends later.
let progress = "";
const failed = await client.callTool(
  { name: "run_code", arguments: { code: `console.log("one"); setTimeout(() => { console.log("two"); setTimeout(() => process.exit(7), 300) }, 300)` } },
  undefined,
  { onprogress: (p) => (progress += p.message ?? "") },
);
console.log(JSON.stringify({ Tools: tools.map((t) => t.name), Stdout: hello.structuredContent.stdout, IsError: failed.isError, Exit: failed.structuredContent.exitCode, Progress: progress }));
await client.close();
