// Odd servers and odd names: no machines.
import assert from "node:assert/strict";
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { callFunction } from "../src/functions.js";
import { HTTP } from "../src/http.js";
import { Client, ServerError, UnitaskError } from "../src/index.js";
import { MockServer } from "../src/mock.js";

/** Serves until the end of a function, which gets a client and the paths that were asked for. */
async function serving(answer: RequestListener, does: (client: Client, asked: string[]) => Promise<void>): Promise<void> {
  const asked: string[] = [];
  const server = createServer((request, response) => {
    asked.push(request.url ?? "");
    answer(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await does(new Client({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, token: "t" }), asked);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

test("paths lead nowhere else", async () => {
  const server = new MockServer();
  const client = new Client({ fetch: server.fetch });
  const session = await client.session();
  for (const path of ["../../about", "/a/../../..", "%2e%2e/about", "a/.%2E/b", "..", "a/..?x=/b", "..\\a", ".\t./a"]) {
    await assert.rejects(session.fetch(80, path), /has \. or \.\. in it/, path);
    await assert.rejects(session.url(80, path), UnitaskError);
  }
  assert.match(await session.url(80, "/a?from=../b"), /\/ports\/80\/a\?from=\.\.\/b$/);
  for (const name of ["", ".", ".."]) {
    await assert.rejects(async () => session.values.get(name), /not an id or a name/);
    await assert.rejects(client.getSession(name), /not an id or a name/);
  }
});

test("another server", async () => {
  for (const url of ["localhost:7778", "nonsense", "file:///x"]) {
    assert.throws(() => new Client({ url }), (err) => err instanceof UnitaskError && /begin with http/.test(err.message));
  }
  await serving((_, response) => response.end("<html>"), async (client) => {
    await assert.rejects(client.about(), (err) => err instanceof ServerError && /not of a server of unitask/.test(err.message));
  });
  const moves: RequestListener = (_, response) => response.writeHead(307, { Location: "/other" }).end();
  await serving(moves, async (client, asked) => {
    await assert.rejects(client.run("1"), { name: "ApiError", status: 307 });
    assert.deepEqual(asked, ["/v1/runs"]);
  });
});

test("a stream that breaks", async () => {
  const answer: RequestListener = (request, response) => {
    if (!request.url?.endsWith("/events")) return void response.writeHead(202).end('{"runId": "r", "status": "running"}');
    response.write("id: 0\nevent: note\ndata: {}\n\n", () => response.destroy());
  };
  for (const key of [undefined, "k"]) {
    await serving(answer, async (client, asked) => {
      const run = client.run("1", { onEvent: () => undefined, ...(key ? { key } : {}) });
      await assert.rejects(run, (err) => err instanceof ServerError && /broke/.test(err.message));
      assert.equal(asked.includes("/v1/runs/r/cancel"), key === undefined);
    });
  }
  const wrong: RequestListener = (_, response) => response.end("data: {\n\n");
  await serving(wrong, (client) => assert.rejects(client.events().next(), /no event/));
});

test("a signal ends what waits", async () => {
  const answer: RequestListener = (request, response) => {
    if (request.url?.endsWith("/events")) response.write("id: 1\nevent: note\ndata: {}\n\n"); // and no more
    else response.writeHead(202).end('{"runId": "r", "status": "running"}');
  };
  await serving(answer, async (client, asked) => {
    const stop = new AbortController();
    const run = client.run("1", { onEvent: () => stop.abort(new Error("enough")), signal: stop.signal });
    await assert.rejects(run, /enough/);
    assert.equal(asked.at(-1), "/v1/runs/r/cancel");
  });
  const busy: RequestListener = (_, response) =>
    void response.writeHead(429).end('{"code": "busy", "retryable": true, "retryAfterMs": 25000}');
  await serving(busy, async (client) => {
    await assert.rejects(client.run("1", { signal: AbortSignal.timeout(100) }), { name: "TimeoutError" });
  });
});

test("Node's fetch waits for long runs", async (t) => {
  let seen: { dispatcher?: object } | undefined;
  t.mock.method(globalThis, "fetch", async (_: unknown, init: object) => {
    seen = init;
    return new Response("{}");
  });
  await new Client({ url: "http://x" }).about();
  assert.equal(seen?.dispatcher?.constructor.name, "Agent");
  await new Client({ url: "http://x", fetch: async (_, init) => ((seen = init as object), new Response("{}")) }).about();
  assert.equal(seen?.dispatcher, undefined);
});

test("functions that a server calls, and results that none takes", async () => {
  const said: Record<string, unknown>[] = [];
  const answer = async (_: unknown, init?: RequestInit) => {
    said.push(JSON.parse(String(init?.body)));
    const refused = { code: "usage", detail: "is too large", status: 413 };
    return String(init?.body).length > 100_000 ? Response.json(refused, { status: 413 }) : new Response(null, { status: 204 });
  };
  const http = new HTTP({ fetch: answer as typeof fetch });
  const circle: Record<string, unknown> = {};
  circle["circle"] = circle;
  const shop: Record<string, () => unknown> = {
    big: () => 1n, circle: () => circle, symbol: () => Symbol("x"), large: () => "x".repeat(200_000),
    silent: () => { throw Object.create(null); },
  };
  const names = Object.keys(shop).map((name) => ["shop", name] as const);
  const others = [["shop", "toString"], ["__proto__", "toString"], ["constructor", "assign"], ["other", "x"]] as const;
  for (const [server, tool] of [...names, ...others]) {
    const data = { call: "1", server, tool, arguments: {} };
    await callFunction(http, "r", data, { shop });
    assert.deepEqual(Object.keys(said.at(-1)!), ["error"], `${server}.${tool}`);
  }
});
