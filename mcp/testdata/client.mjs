// A program with the TypeScript SDK: every list, every tool, every kind of resource. It prints the results.
import { setTimeout as later } from "node:timers/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [at, prompts] = process.argv.slice(2);
const transport = at.startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(at))
  : new StdioClientTransport({ command: at, args: ["mcp", "--pool", "0", "--prompts", prompts], env: process.env });
const client = new Client({ name: "example", version: "1.0.0" });
await client.connect(transport);

const found = { Read: {} };
found.Tools = (await client.listTools()).tools.map((t) => t.name).sort();
found.Resources = (await client.listResources()).resources.map((r) => r.uri);
const templates = (await client.listResourceTemplates()).resourceTemplates;
found.Templates = templates.length;
found.Prompts = (await client.listPrompts()).prompts.map((p) => p.name);
found.Prompt = (await client.getPrompt({ name: "hello" })).messages[0].content.text;

const call = async (name, args = {}, options) => (await client.callTool({ name, arguments: args }, undefined, options)).structuredContent;

const code = `const fs = require("fs"); fs.writeFileSync("/out/bytes", Buffer.from([0, 1])); fs.writeFileSync("/out/none", ""); console.log("é")`;
const { runId: run } = await call("run_code", { language: "cjs", code, files: [{ name: "beside.txt", content: "x" }] });
for (const part of ["", "/code", "/stdout", "/stderr", "/netlog", "/console", "/inlineFiles", "/artifacts/bytes", "/artifacts/none"]) {
  const [got] = (await client.readResource({ uri: `unitask://runs/${run}${part}` })).contents;
  found.Read[part] = "blob" in got ? Buffer.from(got.blob, "base64").toString("hex") : got.text;
}
for (const part of ["", "/code", "/inlineFiles"]) found.Read[part] = String(found.Read[part].length > 0);
found.Images = JSON.parse((await client.readResource({ uri: "unitask://images" })).contents[0].text).length > 0;
found.Listed = (await call("list_runs")).runs.map((r) => r.id).join() === run;
found.Inspected = (await call("inspect_run", { runId: run })).id === run;
const completed = await client.complete({ ref: { type: "ref/resource", uri: templates[0].uriTemplate }, argument: { name: "id", value: run.slice(0, 4) } });
found.Completed = completed.completion.values.join() === run;

// The SDK drops progress that it reads together with the result: the code ends later.
let said = "";
const failing = `console.log("one"); setTimeout(() => { console.log("two"); setTimeout(() => process.exit(7), 300) }, 300)`;
found.Exit = (await call("run_code", { language: "js", code: failing }, { onprogress: (p) => (said += p.message ?? "") })).exitCode;
found.Progress = said.includes("one\ntwo\n");

const leaving = new AbortController();
await call("run_code", { language: "js", code: `console.log("begun"); setTimeout(() => {}, 600000)` }, {
  signal: leaving.signal,
  onprogress: (p) => p.message?.includes("begun") && leaving.abort(),
}).catch(() => {});
const newest = async () => (await call("list_runs", { limit: 1 })).runs[0];
while ((await newest()).status === "running") await later(100);
found.Cancelled = (await newest()).outcome;

const { session } = await call("run_code", { language: "js", session: "new", code: "let n = 41" });
found.Value = (await call("run_code", { language: "js", session, code: "n + 1" })).value;
found.Command = (await call("session_command", { session, command: "echo hi" })).stdout;
await call("session_files", { session, op: "create", path: "a.txt", file_text: "one\n" });
found.File = (await call("session_files", { session, op: "view", path: "a.txt" })).text.includes("one");
const { runId: behind } = await call("session_command", { session, command: "echo on; sleep 600", background: true });
await call("manage_session", { op: "stop", session, run: behind });
found.Waited = (await call("wait_command", { run: behind })).outcome;
await call("manage_session", { op: "put", session, name: "x", value: { y: [1, null] } });
found.Put = JSON.stringify((await call("manage_session", { op: "get", session, name: "x" })).value);
found.Sessions = (await call("manage_session", { op: "list" })).sessions.length;
await call("manage_session", { op: "end", session });
found.Doctor = "checks" in (await call("unitask_doctor"));
found.Wrong = (await client.callTool({ name: "run_code", arguments: { language: "js", code: 1 } })).isError;
console.log(JSON.stringify(found));
await client.close();
