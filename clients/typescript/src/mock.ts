/**
 * A server in memory, for tests of programs that use this package. It runs no code: your function gives the results.
 *
 *     const server = new MockServer((asked) => (asked.code === "print(6 * 7)" ? "42\n" : 1));
 *     const client = new Client({ fetch: server.fetch });
 */
import type { Schemas } from "./schema.js";

/** The JSON of a request for a run, step or command. The JSON of a step or command has the session's id. */
export type Asked = { code?: string; args?: string[]; language?: string; session?: string | undefined } & Record<string, unknown>;

/** A result: the output, the exit code, or members of the result. `out` has the files in /out: {name: content}. */
export type Does = string | number | (Partial<Schemas["RunResult"]> & { out?: Record<string, string> }) | undefined;

type Handler = (parts: string[], request: Request, query: URLSearchParams) => Promise<Response> | Response;

class Refused extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, detail: string) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** A server in memory. Give its `fetch` to Client. */
export class MockServer {
  readonly requests: Asked[] = [];
  readonly results = new Map<string, Schemas["RunResult"]>();
  readonly sessions = new Map<string, Schemas["Session"]>();
  readonly #does: (asked: Asked) => Does;
  readonly #out = new Map<string, Record<string, string>>();
  readonly #files = new Map<string, Map<string, Uint8Array<ArrayBuffer>>>();
  readonly #values = new Map<string, Map<string, unknown>>();
  #last = 0;

  constructor(does: (asked: Asked) => Does = () => undefined) {
    this.#does = does;
  }

  readonly fetch: typeof fetch = async (input, init) => {
    const request = new Request(input, init);
    const url = new URL(request.url);
    for (const [method, path, handler] of this.#routes) {
      const found = new RegExp(`^/v1${path}$`).exec(url.pathname);
      if (!found || request.method !== method) continue;
      try {
        return await handler(found.slice(1).map(decodeURIComponent), request, url.searchParams);
      } catch (err) {
        if (!(err instanceof Refused)) throw err;
        return problem(err.status, err.code, err.message);
      }
    }
    return problem(501, "mock", `unitask/mock has no ${request.method} ${url.pathname}`);
  };

  readonly #routes: [string, string, Handler][] = [
    ["POST", "/runs", async (_, request, query) => {
      const result = this.#do((await request.json()) as Asked);
      return query.get("wait") === "false" ? json(202, { runId: result.runId, status: "done" }) : json(200, result);
    }],
    ["GET", "/runs", () => json(200, { runs: [] })],
    ["GET", "/runs/([^/]+)/result", ([id]) => json(200, this.#run(id))],
    ["POST", "/runs/([^/]+)/cancel", ([id]) => json(200, { runId: this.#run(id).runId, status: "done" })],
    ["GET", "/runs/([^/]+)/(stdout|stderr)", ([id, name]) => new Response(this.#run(id)[name as "stdout"])],
    ["GET", "/runs/([^/]+)/artifacts", ([id]) => json(200, { artifacts: this.#run(id).artifacts })],
    ["GET", "/runs/([^/]+)/artifacts/(.+)", ([id = "", path = ""]) => {
      const content = this.#out.get(id)?.[path];
      if (content === undefined) throw new Refused(404, "path", `there is no artifact ${path}`);
      return new Response(content);
    }],
    ["GET", "/(?:sessions/[^/]+/)?runs/([^/]+)/events", ([id], request) => this.#events(this.#run(id), request)],
    ["GET", "/approvals", () => json(200, { questions: [] })],
    ["POST", "/sessions", async (_, request) => {
      const asked = (await request.json()) as Schemas["NewSession"];
      const made = this.#session(asked.language ?? "js");
      for (const file of asked.files ?? []) {
        if (typeof file === "object") this.#of(made.id).set("/work/" + file.name, encode(file.content));
      }
      return json(201, { ...made, denials: [] });
    }],
    ["GET", "/sessions", () => json(200, { sessions: [...this.sessions.values()] })],
    ["GET", "/sessions/([^/]+)", ([id]) => json(200, this.#state(id))],
    ["DELETE", "/sessions/([^/]+)", ([id]) => {
      this.sessions.delete(this.#state(id).id);
      return new Response(null, { status: 204 });
    }],
    ["POST", "/sessions/([^/]+)/(pause|resume|extend)", ([id, how]) => {
      this.#state(id).paused = how === "pause";
      return json(200, this.#state(id));
    }],
    ["POST", "/sessions/([^/]+)/fork", async ([id = ""], request) => {
      const { count = 1 } = (await request.json()) as { count?: number };
      const made = Array.from({ length: count }, () => this.#session(this.#state(id).language, id));
      for (const fork of made) {
        this.#files.set(fork.id, new Map(this.#of(id)));
        this.#values.set(fork.id, new Map(this.#values.get(id)));
      }
      return json(201, { sessions: made });
    }],
    ["POST", "/sessions/([^/]+)/(?:steps|commands)", async ([id], request, query) => {
      this.#state(id).paused = false;
      const result = this.#do({ ...((await request.json()) as Asked), session: id });
      if (query.get("wait") === "false") return json(202, { runId: result.runId, session: id, pid: 2 });
      return json(200, { hints: [], ...result, session: id, durationMs: 0 });
    }],
    ["GET", "/sessions/([^/]+)/files", ([id], _, query) => new Response(this.#file(id, query))],
    ["PUT", "/sessions/([^/]+)/files", async ([id], request, query) => {
      this.#of(id).set(full(query), new Uint8Array(await request.arrayBuffer()));
      return json(200, info(full(query), this.#file(id, query)));
    }],
    ["DELETE", "/sessions/([^/]+)/files", ([id], _, query) => {
      const below = [...this.#of(id).keys()].filter((one) => one === full(query) || one.startsWith(full(query) + "/"));
      if (!below.length) throw new Refused(404, "file", `${full(query)}: no such file`);
      for (const one of below) this.#of(id).delete(one);
      return new Response(null, { status: 204 });
    }],
    ["GET", "/sessions/([^/]+)/files/list", ([id], _, query) => {
      const folder = full(query).replace(/\/\.$/, "") + "/";
      const found = [...this.#of(id)].filter(([path]) => path.startsWith(folder)).sort();
      return json(200, { entries: found.map(([path, content]) => info(path, content)), more: false });
    }],
    ["GET", "/sessions/([^/]+)/files/stat", ([id], _, query) => json(200, info(full(query), this.#file(id, query)))],
    ["GET", "/sessions/([^/]+)/values", ([id]) => json(200, { names: [...this.#valuesOf(id).keys()].sort(), more: false })],
    ["GET", "/sessions/([^/]+)/values/([^/]+)", ([id, name = ""]) => {
      if (!this.#valuesOf(id).has(name)) throw new Refused(404, "value", `there is no value ${name}`);
      return json(200, this.#valuesOf(id).get(name));
    }],
    ["PUT", "/sessions/([^/]+)/values/([^/]+)", async ([id, name = ""], request) => {
      this.#valuesOf(id).set(name, await request.json());
      return new Response(null, { status: 204 });
    }],
  ];

  #id(): string {
    return `20260101-000000000-${(++this.#last).toString(16).padStart(6, "0")}`;
  }

  #do(asked: Asked): Schemas["RunResult"] {
    this.requests.push(asked);
    const does = this.#does(asked);
    const { out = {}, ...members } =
      typeof does === "string" ? { stdout: does } : typeof does === "number" ? { exitCode: does } : (does ?? {});
    const runId = this.#id();
    const artifacts = Object.entries(out).map(([path, content]) => {
      return { path, size: encode(content).length, mode: "0644", sha256: "" };
    });
    const result: Schemas["RunResult"] = {
      runId, outcome: "exited", exitCode: 0, stdout: "", stderr: "", truncated: false, timedOut: false, oom: false,
      policy: { effective: {}, denials: [] }, durationMs: { total: 0, boot: 0, connect: 0, run: 0 }, artifacts, ...members,
    };
    this.#out.set(runId, out);
    this.results.set(runId, result);
    return result;
  }

  #run(id = ""): Schemas["RunResult"] {
    const found = this.results.get(id);
    if (!found) throw new Refused(404, "run.gone", `there is no run ${id}`);
    return found;
  }

  #events(result: Schemas["RunResult"], request: Request): Response {
    const told: [string, unknown][] = [["begun", { runId: result.runId }], ["started", {}]];
    for (const name of ["stdout", "stderr"] as const) {
      if (result[name]) told.push([name, { text: result[name] }]);
    }
    told.push(["end", result]);
    const after = Number(request.headers.get("Last-Event-ID") ?? 0);
    const text = told.map(([kind, data], i) => `id: ${i + 1}\nevent: ${kind}\ndata: ${JSON.stringify(data)}\n\n`);
    return new Response(text.slice(after).join(""), { headers: { "Content-Type": "text/event-stream" } });
  }

  #session(language: string, parent?: string): Schemas["Session"] {
    const id = this.#id(), now = Date.now();
    const made: Schemas["Session"] = {
      id, language, image: language, began: new Date(now).toISOString(),
      expiresAt: new Date(now + 86_400_000).toISOString(), paused: false, ...(parent ? { parent } : {}),
    };
    this.sessions.set(id, made);
    this.#files.set(id, new Map());
    this.#values.set(id, new Map());
    return made;
  }

  #state(id = ""): Schemas["Session"] {
    const found = this.sessions.get(id);
    if (!found) throw new Refused(404, "session.gone", `there is no session ${id}`);
    return found;
  }

  #of(id?: string): Map<string, Uint8Array<ArrayBuffer>> {
    return this.#files.get(this.#state(id).id) ?? new Map();
  }

  #valuesOf(id?: string): Map<string, unknown> {
    return this.#values.get(this.#state(id).id) ?? new Map();
  }

  #file(id: string | undefined, query: URLSearchParams): Uint8Array<ArrayBuffer> {
    const found = this.#of(id).get(full(query));
    if (!found) throw new Refused(404, "file", `${full(query)}: no such file`);
    return found;
  }
}

function full(query: URLSearchParams): string {
  const path = query.get("path") ?? ".";
  return path.startsWith("/") ? path : "/work/" + path;
}

function encode(text: string): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(text);
}

function info(path: string, content: Uint8Array): Schemas["FileInfo"] {
  return { path, kind: "file", size: content.length, mode: "0644", modified: "2026-01-01T00:00:00Z", owner: "user", group: "user" };
}

function json(status: number, value: unknown): Response {
  return new Response(JSON.stringify(value), { status, headers: { "Content-Type": "application/json" } });
}

function problem(status: number, code: string, detail: string): Response {
  return json(status, { type: "about:blank", title: detail, status, code, detail, retryable: false });
}
