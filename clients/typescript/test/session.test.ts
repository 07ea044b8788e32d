// Sessions, with real machines.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Client, type Session } from "../src/index.js";

const client = new Client();
let session: Session;
before(async () => {
  session = await client.session();
});
after(() => session.close());

test("steps", async () => {
  await session.run("x = 6 * 7");
  const result = await session.run("print('hello'); x");
  assert.deepEqual([result.value, result.stdout, result.ok], ["42", "hello\n", true]);
  assert.equal((await session.run("1 / 0")).ok, false);
  assert.equal((await session.run("open('in.txt').read()", { files: { "in.txt": "content" } })).value, "'content'");
});

test("commands", async () => {
  assert.equal((await session.exec(["sort"], { stdin: "b\na\n", env: { LC_ALL: "C" } })).stdout, "a\nb\n");
  assert.equal((await session.exec(["no-such-program"])).exitCode, 127);
  const task = await session.start(["cat"], { interactive: true });
  assert.ok(task.pid > 0 && (await session.commands()).some((one) => one.runId === task.id));
  await task.write("one\n");
  await task.write(new Uint8Array([255, 10]));
  await task.closeStdin();
  const seen: number[] = [];
  for await (const event of task.events()) {
    if (event.kind === "stdout") seen.push(...event.bytes);
  }
  assert.deepEqual(seen, [111, 110, 101, 10, 255, 10]);
  const sleeps = await session.start(["sleep", "60"]);
  await sleeps.signal("SIGTERM");
  assert.equal((await sleeps.result()).outcome, "signaled");
  const step = await session.startRun("import time; time.sleep(60)");
  await step.cancel();
  assert.equal((await step.result()).ok, false);
});

test("files", async () => {
  const { files } = session;
  assert.equal((await files.write("data/é b.txt", "text", { mode: "0640" })).path, "/work/data/é b.txt");
  assert.equal(await files.readText("data/é b.txt"), "text");
  assert.equal((await files.stat("data/é b.txt")).mode, "0640");
  await files.mkdir("data/more");
  await files.move("data/é b.txt", "data/more/c");
  const entries = await files.list("data", { depth: 2 });
  assert.deepEqual(entries.map((one) => one.path).sort(), ["/work/data/more", "/work/data/more/c"]);
  const large = new Blob([new Uint8Array(3_000_000)]);
  assert.equal((await files.write("large", large.stream())).size, 3_000_000);
  assert.equal((await files.read("large")).length, 3_000_000);
  await files.remove("data");
  await assert.rejects(files.stat("data"), { status: 404, code: "file" });
  await files.mkdir("watched");
  for await (const event of files.watch("watched")) {
    if (event.kind === "ready") await session.exec(["touch", "watched/a"]);
    else {
      assert.deepEqual([event.kind, event.data], ["change", { kind: "create", name: "a" }]);
      break;
    }
  }
});

test("values and ports", async () => {
  await session.values.set("limits", { retries: [3, null] });
  assert.deepEqual(await session.values.get("limits"), { retries: [3, null] });
  assert.deepEqual(await session.values.names(), ["limits"]);
  await session.files.write("site/index.html", "<p>hi");
  await session.start(["python3", "-m", "http.server", "8123", "--directory", "site"]);
  let answer: Response;
  do {
    answer = await session.fetch(8123, "index.html");
  } while (answer.status === 502);
  assert.equal(await answer.text(), "<p>hi");
  assert.match(await session.url(8123), /\/ports\/8123\/$/);
});

test("a terminal", { skip: typeof WebSocket === "undefined" && "this Node has no WebSocket" }, async () => {
  const socket = await session.terminal({ command: "echo from $((6 * 7)); exit 5" });
  let seen = "", last = "";
  await new Promise((resolve, reject) => {
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") last = data;
      else seen += new TextDecoder().decode(data as ArrayBuffer);
    };
    socket.onclose = resolve;
    socket.onerror = reject;
  });
  assert.match(seen, /from 42/);
  assert.deepEqual(JSON.parse(last), { exitCode: 5 });
});

test("its life", async () => {
  await session.run("y = 1");
  const forks = await session.fork(2);
  for (const [i, fork] of forks.entries()) {
    await using one = fork;
    assert.equal((await one.run(`y += ${i}; y`)).value, String(1 + i));
    assert.equal((await one.info()).parent, session.id);
  }
  await session.pause();
  assert.ok((await session.info()).paused);
  assert.equal((await session.run("y")).value, "1");
  assert.equal((await session.extend(3600)).id, session.id);
  assert.ok((await client.sessions()).some((one) => one.id === session.id));
  assert.equal((await (await client.getSession(session.id)).run("y")).value, "1");
  await assert.rejects(forks[0]?.run("y") ?? Promise.resolve(), { status: 404 });
  await forks[0]?.close();
});

test("functions that the code of a session calls", async () => {
  const calls: number[] = [];
  const own = await client.session({ functions: { shop: { twice: ({ n }: { n: number }) => { calls.push(n); return 2 * n; } } } });
  assert.equal((await own.run("from unitask_tools import shop\nshop.twice(n=1)")).value, "2");
  assert.equal((await own.run("shop.twice(n=2)")).value, "4");
  await own.close();
  assert.deepEqual(calls, [1, 2]);
});
