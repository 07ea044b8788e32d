// The mock: users' tests need no machine. Also what the client does with odd answers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, Client, type Event } from "../src/index.js";
import { readEvents } from "../src/events.js";
import { MockServer } from "../src/mock.js";

test("runs", async () => {
  const server = new MockServer((asked) => (asked.code === "1" ? { stdout: "hi", out: { "a.txt": "x" } } : 3));
  const client = new Client({ fetch: server.fetch });
  const result = await client.run("1", { memoryMb: 128 });
  assert.equal(result.stdout, "hi");
  assert.equal(await result.artifacts[0]?.text(), "x");
  assert.deepEqual(server.requests, [{ code: "1", language: "python", memoryMb: 128 }]);
  const seen: string[] = [];
  assert.equal((await client.run("2", { onEvent: (event) => void seen.push(event.kind) })).exitCode, 3);
  assert.deepEqual(seen, ["begun", "started", "end"]);
  await assert.rejects(client.doctor(), /unitask\/mock has no GET \/v1\/doctor/);
});

test("sessions", async () => {
  const server = new MockServer(() => ({ value: "42" }));
  const client = new Client({ fetch: server.fetch });
  const session = await client.session({ files: { a: "b" } });
  assert.equal((await session.run("6 * 7")).value, "42");
  assert.equal(await session.files.readText("a"), "b");
  await session.files.write("c/d", "e");
  await session.values.set("n", [1]);
  const [fork] = await session.fork();
  await session.files.remove("c");
  assert.equal(await fork?.files.readText("c/d"), "e");
  assert.deepEqual(await fork?.values.get("n"), [1]);
  assert.deepEqual((await session.files.list()).map((one) => one.path), ["/work/a"]);
  assert.ok((await (await session.start(["true"])).result()).ok);
  await session.close();
  await session.close();
  await assert.rejects(session.run("1"), { status: 404, code: "session.gone" });
});

test("a busy server", async () => {
  const problem = (status: number, members: object) => new Response(JSON.stringify(members), { status });
  const busy = () => problem(429, { code: "busy", retryable: true, retryAfterMs: 1 });
  const answers = [busy(), busy(), problem(422, { detail: "no" })];
  const client = new Client({ url: "http://x", fetch: async () => answers.shift() as Response });
  await assert.rejects(client.about(), /no/);
  answers.push(problem(429, { retryable: true, retryAfterMs: 3_600_000 }));
  await assert.rejects(client.about(), (err) => err instanceof ApiError && err.retryAfterMs === 3_600_000);
  answers.push(new Response("<html>", { status: 502 }));
  await assert.rejects(client.about(), /502/);
});

test("a server that does not wait", async () => {
  const problem = JSON.stringify({ code: "run.running", retryable: true, retryAfterMs: 100 });
  const answers = [new Response(problem, { status: 409 }), new Response(problem, { status: 409 })];
  const server = new MockServer(() => "done");
  const { runId } = await new Client({ fetch: server.fetch }).run("1");
  const began = Date.now();
  const client = new Client({ fetch: async (...args) => answers.shift() ?? server.fetch(...args) });
  assert.equal((await client.getRun(runId).result()).stdout, "done");
  assert.ok(Date.now() - began >= 190);
});

test("server-sent events", async () => {
  const text = ': beat\r\n\r\nid: 7\r\nevent: stdout\r\ndata: {"text":\r\ndata: "é"}\r\n\r\nevent: end\ndata: {}\n\n';
  const bytes = new TextEncoder().encode(text);
  for (const size of [1, 3, bytes.length]) {
    const seen: Event[] = [];
    const parts = Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) => bytes.slice(i * size, (i + 1) * size));
    for await (const event of readEvents(streamOf(parts))) seen.push(event);
    assert.deepEqual(seen.map((one) => [one.number, one.kind, one.text]), [[7, "stdout", "é"], [7, "end", ""]]);
  }
  const endless = streamOf(Array.from({ length: 20 }, () => new TextEncoder().encode("data: " + "x".repeat(1_000_000))));
  await assert.rejects(async () => {
    for await (const event of readEvents(endless)) assert.fail(event.kind);
  }, /too large/);
});

function streamOf(parts: Uint8Array[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(to) {
      for (const part of parts) to.enqueue(part);
      to.close();
    },
  });
}
