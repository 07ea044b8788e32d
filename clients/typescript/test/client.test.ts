// The client with real machines: $UNITASK_URL, or a server that it starts.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { ApiError, check, Client, CodeError, ServerError } from "../src/index.js";

const client = new Client();

test("a run", async () => {
  const result = await client.run("print(6 * 7)");
  assert.equal(check(result).stdout, "42\n");
  assert.ok(result.ok && result.runId);
  assert.equal((await client.run("console.log(6 * 7)", { language: "js" })).stdout, "42\n");
});

test("options", async () => {
  const code = "import os, sys; print(open('in.txt').read(), os.environ['A'], sys.argv[1:], sys.stdin.read())";
  const result = await client.run(code, {
    files: { "in.txt": "content" }, env: { A: "b" }, args: ["x y"], stdin: "input", timeoutSeconds: 20, memoryMb: 512,
  });
  assert.equal(result.stdout, "content b ['x y'] input\n", result.stderr);
});

test("code that fails", async () => {
  const result = await client.run("import sys; print('no', file=sys.stderr); sys.exit(3)");
  assert.equal(result.exitCode, 3);
  assert.throws(() => check(result), (err) => err instanceof CodeError && /exit code 3: no/.test(err.message));
  const bytes = await client.run("import sys; sys.stdout.buffer.write(bytes([0, 255]))");
  assert.deepEqual([...bytes.stdoutBytes], [0, 255]);
});

test("artifacts", async () => {
  const code = "import os; os.makedirs('/out/a b'); open('/out/a b/é.txt', 'w').write('x' * 10)";
  const { runId, artifacts } = await client.run(code);
  assert.deepEqual(artifacts.map((one) => one.path), ["a b/é.txt"]);
  assert.equal(await artifacts[0]?.text(), "x".repeat(10));
  assert.equal((await client.getRun(runId).artifacts()).length, 1);
});

test("events and questions", async () => {
  let seen = "";
  const asked: string[] = [];
  const code = "import urllib.request\nprint('é', flush=True)\n" +
    "try: urllib.request.urlopen('http://example.com')\nexcept Exception: print('no')";
  const result = await client.run(code, {
    ask: ["example.com"], timeoutSeconds: 50,
    onEvent: (event) => void (seen += event.kind === "stdout" ? event.text : ""),
    onQuestion: (question) => (asked.push(question.host), "deny"),
  });
  assert.equal(result.stdout, "é\nno\n");
  assert.equal(seen, result.stdout);
  assert.equal(asked[0], "example.com:80");
});

test("functions that the code calls", async () => {
  const inputSchema = { type: "object", properties: { number: { type: "integer" } } };
  const code = `import { shop } from "unitask:tools";
console.log(await shop.twice({ number: 21 }), await shop.nothing({}));
for (const call of [shop.twice({ number: "x" }), shop.fails({})]) await call.catch((e) => console.log(e.code, e.message));`;
  const result = await client.run(code, {
    language: "js",
    functions: {
      shop: {
        twice: { call: async ({ number }: { number: number }) => 2 * number, inputSchema },
        nothing: () => undefined,
        fails: () => { throw new TypeError("no"); },
      },
    },
  });
  assert.match(result.stdout, /^42 null\narguments .*\ntool TypeError: no\n$/, result.stderr);
});

test("a function whose call is among the events that the server dropped", async () => {
  const code = `
import threading, time
from unitask_tools import shop
mebibyte, got = "x" * (1 << 20), []
for _ in range(12): print(mebibyte)
first = threading.Thread(target=lambda: got.append(shop.twice(n=1)))
first.start()
time.sleep(1)
for _ in range(2): print(mebibyte, flush=True)
got.append(shop.twice(n=2))
first.join()
open("/out/got", "w").write(str(sorted(got)))`;
  const kinds = new Set<string>();
  const calls: number[] = [];
  let run = "";
  const result = await client.run(code, {
    functions: { shop: { twice: ({ n }: { n: number }) => { calls.push(n); return 2 * n; } } },
    onEvent: async (event) => {
      kinds.add(event.kind);
      if (event.kind === "begun") run = String(event.data["runId"]);
      while (event.kind === "started") { // this program is busy until both calls wait
        const answer = await fetch(`${await client.url()}/v1/runs/${run}/calls`);
        if (((await answer.json()) as { calls: unknown[] }).calls.length === 2) break;
      }
    },
  });
  assert.deepEqual(calls.sort(), [1, 2]);
  assert.ok(kinds.has("lost"));
  assert.equal(await result.artifacts.find((one) => one.path === "got")?.text(), "[2, 4]");
});

test("a run that is ended", async () => {
  const code = "import time; print('up', flush=True); time.sleep(60)";
  {
    await using run = await client.start(code, { timeoutSeconds: 90 });
    for await (const event of run.events()) {
      if (event.kind === "stdout") break;
    }
    assert.equal(new TextDecoder().decode(await run.output()), "up\n");
    await run.cancel();
    assert.equal((await run.result()).outcome, "cancelled");
    assert.equal((await run.record()).id, run.id);
  }
  const ended = client.run(code, { timeoutSeconds: 90, signal: AbortSignal.timeout(1000) });
  await assert.rejects(ended, { name: "TimeoutError" });
  for await (const one of client.runs()) {
    assert.notEqual(one.id, undefined);
    break;
  }
});

test("a key", async () => {
  const key = randomUUID();
  const first = await client.run("import time; print(time.time())", { key });
  assert.equal((await client.run("import time; print(time.time())", { key })).runId, first.runId);
});

test("errors", async () => {
  await assert.rejects(client.run("DISPLAY 1", { language: "cobol" }), (err) =>
    err instanceof ApiError && err.status === 422 && /cobol/.test(err.message) && err.remedy !== "");
  await assert.rejects(client.getRun("20260101-000000000-abcdef").result(), { status: 404 });
  await assert.rejects(new Client({ url: "http://127.0.0.1:1" }).about(), (err) =>
    err instanceof ServerError && /127.0.0.1:1/.test(err.message));
  assert.ok((await client.about()).languages.includes("python"));
  assert.ok((await client.doctor()).ok);
  assert.ok((await client.images()).length > 0);
  assert.deepEqual(await client.questions(), []);
});

test("the server ends with its process", { skip: "UNITASK_URL" in process.env }, async () => {
  const code = `import { Client } from ${JSON.stringify(new URL("../src/index.js", import.meta.url).href)};
    const client = new Client(); await client.about(); console.log(await client.url());`;
  for (const end of ["", "process.kill(process.pid, 9)"]) {
    const said = spawnSync(process.execPath, ["--input-type=module", "-e", code + end], { encoding: "utf8", timeout: 60_000 });
    const url = said.stdout.trim();
    assert.match(url, /^http/, said.stderr);
    const gone = async () => {
      for (let i = 0; i < 200; i++) {
        try {
          await new Client({ url, retries: 0 }).about();
        } catch (err) {
          if (err instanceof ServerError) return true;
        }
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      return false;
    };
    assert.ok(await gone(), `${url} still answers`);
  }
  const missing = spawnSync(process.execPath, ["--input-type=module", "-e", code], {
    encoding: "utf8", env: { ...process.env, UNITASK_BIN: "/nonexistent/unitask" },
  });
  assert.match(missing.stderr, /ServerError: start \/nonexistent\/unitask/);
});
