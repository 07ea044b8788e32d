import { ApiError, ServerError, UnitaskError } from "./errors.js";
import { type Event, readEvents } from "./events.js";
import { localServer } from "./server.js";

/** Options of a client. */
export interface ClientOptions {
  /** The server's address; $UNITASK_URL if not given. Without an address the client starts a server (Node only). */
  url?: string;
  /** A token of `unitask serve key`, which says who the caller is; $UNITASK_TOKEN if not given. */
  token?: string;
  /** How often the client repeats a request that a busy server did not begin; 2 if not given. */
  retries?: number;
  /** For tests and proxies: see unitask/mock. */
  fetch?: typeof fetch;
}

/** The parts of a request. */
export interface Sent {
  query?: Record<string, string | number | boolean | undefined>;
  json?: unknown;
  body?: Exclude<RequestInit["body"], undefined>;
  key?: string | undefined;
  signal?: AbortSignal | undefined;
  headers?: Record<string, string>;
  /** How to treat a redirect; "manual" if not given, so that the token and code go to no other host. */
  redirect?: RequestRedirect;
}

const longestWait = 30_000;

/** Parts of a path that URL resolves, so that the request would go to another path. */
const dots = /(^|[/\\])(\.|%2e){1,2}([/\\]|$)/i;

type Init = RequestInit & { duplex?: "half"; dispatcher?: object };

let agent: object | undefined;

/** Returns a dispatcher for Node's fetch without its time limit of five minutes, because a run may take longer. */
function patient(): object | undefined {
  if (agent) return agent;
  const has = globalThis as Record<symbol, object | undefined>;
  const found = has[Symbol.for("undici.globalDispatcher.2")] ?? has[Symbol.for("undici.globalDispatcher.1")];
  if (found?.constructor.name !== "Agent") return undefined; // a browser, or a dispatcher that the user has set
  const Agent = found.constructor as new (options: object) => object;
  return (agent = new Agent({ headersTimeout: 0, bodyTimeout: 0 }));
}

/** Sends requests to a server. */
export class HTTP {
  readonly token: string | undefined;
  readonly #retries: number;
  readonly #fetch: typeof fetch;
  readonly #ownFetch: boolean;
  #url: string | undefined;

  constructor(options: ClientOptions) {
    const env = globalThis.process?.env ?? {};
    const url = options.url || env["UNITASK_URL"];
    if (url && !/^https?:\/\/[^/]/.test(url)) {
      throw new UnitaskError(`the server's address ${url} does not begin with http:// or https://`);
    }
    this.#url = url?.replace(/\/+$/, "") || undefined;
    this.token = (options.token || env["UNITASK_TOKEN"])?.trim() || undefined;
    if (this.token && !/^[!-~]+$/.test(this.token)) { // the message does not show the token
      throw new UnitaskError("the token has a space, a control character or another one that is not ASCII");
    }
    this.#retries = options.retries ?? 2;
    this.#ownFetch = options.fetch !== undefined;
    this.#fetch = options.fetch ?? ((...args) => fetch(...args));
    if (options.fetch && !this.#url) this.#url = "http://unitask.mock";
  }

  /** Returns the server's address. Starts the server if needed. */
  async url(): Promise<string> {
    return this.#url ?? (await localServer());
  }

  /** Sends a request once, and returns its answer with any status. Throws ServerError if there is no answer. */
  async raw(method: string, path: string, sent: Sent = {}): Promise<Response> {
    const at = new URL((await this.url()) + path);
    for (const [name, value] of Object.entries(sent.query ?? {})) {
      if (value !== undefined) at.searchParams.set(name, String(value));
    }
    const headers = new Headers(sent.headers);
    if (this.token) headers.set("Authorization", `Bearer ${this.token}`);
    if (sent.key) headers.set("Idempotency-Key", sent.key);
    const init: Init = { method, headers, signal: sent.signal ?? null, redirect: sent.redirect ?? "manual" };
    const dispatcher = this.#ownFetch ? undefined : patient();
    if (dispatcher) init.dispatcher = dispatcher;
    if (sent.json !== undefined) {
      headers.set("Content-Type", "application/json");
      init.body = JSON.stringify(sent.json);
    } else if (sent.body !== undefined) {
      init.body = sent.body;
      if (sent.body instanceof ReadableStream) init.duplex = "half";
    }
    try {
      return await this.#fetch(at.href, init);
    } catch (err) {
      if (sent.signal?.aborted) throw err;
      const cause = err instanceof Error ? ((err.cause as Error | undefined) ?? err) : undefined;
      throw new ServerError(`the server at ${at.origin} did not answer: ${cause?.message || cause?.name || err}`, { cause: err });
    }
  }

  /** Sends a request, and repeats it if the server is busy. Throws ApiError if the server refuses it. */
  async send(method: string, path: string, sent: Sent = {}): Promise<Response> {
    for (let left = this.#retries; ; left--) {
      let answer: Response;
      try {
        answer = await this.raw(method, path, sent);
      } catch (err) {
        if (!sent.key || left <= 0 || !(err instanceof ServerError)) throw err;
        await pause(200, sent.signal);
        continue;
      }
      if (answer.ok) return answer;
      const refused = new ApiError(answer.status, await problemOf(answer));
      const again = left > 0 && refused.retryable && [429, 503].includes(refused.status) && sent.body === undefined;
      if (!again || refused.retryAfterMs > longestWait) throw refused;
      await pause(refused.retryAfterMs || 1000, sent.signal);
    }
  }

  /** Sends a request and returns the JSON of its answer. */
  async json<T>(method: string, path: string, sent: Sent = {}): Promise<T> {
    const answer = await this.send(method, path, sent);
    try {
      return (await answer.json()) as T;
    } catch (err) {
      if (sent.signal?.aborted) throw err;
      throw new ServerError(`what ${answer.url} answers is not of a server of unitask: ${String(err)}`, { cause: err });
    }
  }

  /** Yields the server-sent events after a number, until the server ends the stream. Connects again if needed. */
  async *events(path: string, after = 0, sent: Sent = {}): AsyncGenerator<Event, void> {
    for (let left = this.#retries; ; left--) {
      try {
        const headers: Record<string, string> = after ? { "Last-Event-ID": String(after) } : {};
        const answer = await this.send("GET", path, { ...sent, headers });
        if (!answer.body) return;
        for await (const event of readEvents(answer.body)) {
          after = event.number || after;
          left = this.#retries;
          yield event;
        }
        return;
      } catch (err) {
        if (sent.signal?.aborted || !(err instanceof ServerError) || left <= 0 || !after) throw err;
        await pause(200, sent.signal);
      }
    }
  }
}

async function problemOf(answer: Response): Promise<object> {
  try {
    const problem: unknown = await answer.json();
    return typeof problem === "object" && problem !== null ? problem : {};
  } catch {
    return {};
  }
}

export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, ms);
    if (signal?.aborted) aborted();
    else signal?.addEventListener("abort", aborted, { once: true });
  });
}

/** Returns a path below /v1, with slashes in parts quoted. Throws UnitaskError if a part would lead to another path. */
export function pathOf(...parts: string[]): string {
  for (const part of parts) {
    if (["", ".", ".."].includes(part)) throw new UnitaskError(`${JSON.stringify(part)} is not an id or a name`);
  }
  return "/v1/" + parts.map(encodeURIComponent).join("/");
}

/** Returns the path of an HTTP server in a session's machine. Throws UnitaskError if `path` leads out of the port. */
export function portPath(port: number, path: string): string {
  if (!Number.isInteger(port)) throw new UnitaskError(`${port} is not a port`);
  const plain = path.replace(/[?#].*$/s, "").replace(/[\t\r\n]/g, ""); // as URL reads it
  if (dots.test(plain)) throw new UnitaskError(`the path ${path} has . or .. in it`);
  return `/ports/${port}/${path.replace(/^\//, "")}`;
}

/** Decodes base64. */
export function bytesOf(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

/** Encodes bytes as base64. */
export function base64Of(bytes: Uint8Array): string {
  let text = "";
  for (const b of bytes) text += String.fromCharCode(b);
  return btoa(text);
}
