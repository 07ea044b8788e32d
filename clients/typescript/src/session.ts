/// <reference lib="esnext.disposable" preserve="true" />
import { ApiError } from "./errors.js";
import type { Event } from "./events.js";
import { follow } from "./functions.js";
import { base64Of, HTTP, pathOf, portPath } from "./http.js";
import { answer, filesOf, type RunOptions, type RunResult, streamsOf, type Verdict, waitFor } from "./run.js";
import type { Schemas } from "./schema.js";

/** Options of a session: the members of POST /v1/sessions. */
export interface SessionOptions extends Omit<Schemas["NewSession"], "files" | "clientTools"> {
  /** {name: content}, or the API's list. */
  files?: RunOptions["files"];
  /**
   * Your functions, which the code calls one at a time until the session ends, each within a minute. A session of
   * getSession has none, and calls in forks are not answered.
   */
  functions?: RunOptions["functions"];
  /** Idempotency-Key: the same call never begins the work twice. */
  key?: string;
}

/** How a step or a command ended. `value` is the value of a step's last expression, as text. */
export type SessionResult = Schemas["SessionResult"] & ReturnType<typeof streamsOf>;

type StepOptions = Omit<Schemas["Step"], "code" | "files"> & Pick<SessionOptions, "files" | "key"> & { signal?: AbortSignal };
type CommandOptions = Omit<Partial<Schemas["Command"]>, "args"> & { key?: string; signal?: AbortSignal };
type As = { user?: "user" | "root" };

/** A step or a command in the background. It ends with its session. */
export class Task {
  readonly id: string;
  readonly session: string;
  /** Number of a command's process in the machine; 0 for a step. */
  readonly pid: number;
  readonly #http: HTTP;
  readonly #at: string;

  constructor(http: HTTP, session: string, id: string, pid = 0) {
    this.#http = http;
    this.session = session;
    this.id = id;
    this.pid = pid;
    this.#at = pathOf("sessions", session, "commands", id);
  }

  /** Yields the events stdout, stderr and end. Begins after the event number `after`. */
  events(after = 0): AsyncGenerator<Event, void> {
    return this.#http.events(pathOf("sessions", this.session, "runs", this.id, "events"), after);
  }

  /** Waits for the task's end and returns its result. */
  result(): Promise<RunResult> {
    return waitFor(this.#http, this.id);
  }

  /** Ends the task. */
  async cancel(): Promise<void> {
    await this.#http.send("DELETE", pathOf("sessions", this.session, "runs", this.id));
  }

  /** Writes to the standard input of a command that was started with `interactive`. */
  async write(input: string | Uint8Array): Promise<void> {
    const json = typeof input === "string" ? { text: input } : { base64: base64Of(input) };
    await this.#http.send("POST", this.#at + "/stdin", { json });
  }

  /** Ends the command's standard input. */
  async closeStdin(): Promise<void> {
    await this.#http.send("POST", this.#at + "/stdin", { json: { close: true } });
  }

  /** Sends a signal, such as "SIGTERM", to the command's process group. */
  async signal(name: string): Promise<void> {
    await this.#http.send("POST", this.#at + "/signal", { json: { signal: name } });
  }

  /** Changes the size of the command's terminal, in characters. */
  async resize(columns: number, rows: number): Promise<void> {
    await this.#http.send("POST", this.#at + "/resize", { json: { columns, rows } });
  }
}

/** Files of a session. Relative paths begin at /work. `user: "root"` needs a session with `root`. */
export class Files {
  readonly #http: HTTP;
  readonly #at: string;

  constructor(http: HTTP, session: string) {
    this.#http = http;
    this.#at = pathOf("sessions", session, "files");
  }

  /** Opens a file, and returns an answer whose body is the file. Throws ApiError with status 404 if there is none. */
  open(path: string, as: As = {}): Promise<Response> {
    return this.#http.send("GET", this.#at, { query: { path, ...as } });
  }

  /** Returns a file's bytes. */
  async read(path: string, as: As = {}): Promise<Uint8Array> {
    return new Uint8Array(await (await this.open(path, as)).arrayBuffer());
  }

  /** Returns a file's text, decoded as UTF-8. */
  async readText(path: string, as: As = {}): Promise<string> {
    return (await this.open(path, as)).text();
  }

  /**
   * Makes or replaces a file, with the folders above it. `mode` is the permissions of a new file in octal, such as
   * "0755"; "644" if not given.
   */
  write(
    path: string,
    content: string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array>,
    as: As & { mode?: string } = {},
  ): Promise<Schemas["FileInfo"]> {
    const headers = { "Content-Type": "application/octet-stream" };
    return this.#http.json("PUT", this.#at, { query: { path, ...as }, body: content, headers });
  }

  /** Returns the entries of a folder. `depth` is the levels of folders; 1, the default, is the folder alone. */
  async list(path = ".", as: As & { depth?: number } = {}): Promise<Schemas["FileInfo"][]> {
    const query = { path, ...as };
    return (await this.#http.json<{ entries: Schemas["FileInfo"][] }>("GET", this.#at + "/list", { query })).entries;
  }

  /** Returns the entry of a file or folder. Throws ApiError with status 404 if there is none. */
  stat(path: string, as: As = {}): Promise<Schemas["FileInfo"]> {
    return this.#http.json("GET", this.#at + "/stat", { query: { path, ...as } });
  }

  /** Removes a file, or a folder with its contents. */
  async remove(path: string, as: As = {}): Promise<void> {
    await this.#http.send("DELETE", this.#at, { query: { path, ...as } });
  }

  /** Makes a folder, and the folders above it. */
  async mkdir(path: string, as: As = {}): Promise<void> {
    await this.#http.send("POST", this.#at + "/mkdir", { json: { path, ...as } });
  }

  /** Renames a file or folder. */
  async move(from: string, to: string, as: As = {}): Promise<void> {
    await this.#http.send("POST", this.#at + "/move", { json: { from, to, ...as } });
  }

  /**
   * Yields changes in a folder, and below it if `recursive`: the events ready, change and overflow. The stream ends
   * with the session.
   */
  watch(path = ".", as: As & { recursive?: boolean } = {}): AsyncGenerator<Event, void> {
    return this.#http.events(this.#at + "/watch", 0, { query: { path, ...as } });
  }
}

/** Values of a session. Code of every language reads and writes them as JSON in /work/.values/NAME.json. */
export class Values {
  readonly #http: HTTP;
  readonly #session: string;

  constructor(http: HTTP, session: string) {
    this.#http = http;
    this.#session = session;
  }

  /** Returns a value. Throws ApiError with status 404 if there is none. */
  get<T = unknown>(name: string): Promise<T> {
    return this.#http.json("GET", pathOf("sessions", this.#session, "values", name));
  }

  /** Makes or replaces a value. */
  async set(name: string, value: unknown): Promise<void> {
    await this.#http.send("PUT", pathOf("sessions", this.#session, "values", name), { json: value });
  }

  /** Returns the names of all values, sorted. */
  async names(): Promise<string[]> {
    return (await this.#http.json<{ names: string[] }>("GET", pathOf("sessions", this.#session, "values"))).names;
  }
}

/** A machine that stays: variables, files and processes remain from step to step. */
export class Session {
  readonly id: string;
  readonly state: Schemas["Session"];
  readonly files: Files;
  readonly values: Values;
  readonly #http: HTTP;
  readonly #at: string;

  readonly #answering: Promise<void> | undefined;

  constructor(http: HTTP, state: Schemas["Session"], functions?: RunOptions["functions"]) {
    this.#http = http;
    // Without the server no call arrives, and each other call says what is wrong.
    if (functions) this.#answering = follow(http, state.id, functions).catch(() => undefined);
    this.id = state.id;
    this.state = state;
    this.#at = pathOf("sessions", state.id);
    this.files = new Files(http, state.id);
    this.values = new Values(http, state.id);
  }

  async #work(path: string, json: object, key?: string, signal?: AbortSignal): Promise<SessionResult> {
    const is = await this.#http.json<Schemas["SessionResult"]>("POST", this.#at + path, { json, key, signal });
    return Object.assign(is, streamsOf(is));
  }

  async #begin(path: string, json: object): Promise<Task> {
    const is = await this.#http.json<{ runId: string; pid?: number }>("POST", this.#at + path, { query: { wait: false }, json });
    return new Task(this.#http, this.id, is.runId, is.pid);
  }

  /** Runs code in an interpreter of the session, and returns the step's result. */
  run(code: string, options: StepOptions = {}): Promise<SessionResult> {
    const { files, key, signal, ...rest } = options;
    return this.#work("/steps", { code, files: filesOf(files), ...rest }, key, signal);
  }

  /** Begins to run code, and returns the task. */
  startRun(code: string, options: Omit<StepOptions, "key" | "signal"> = {}): Promise<Task> {
    const { files, ...rest } = options;
    return this.#begin("/steps", { code, files: filesOf(files), ...rest });
  }

  /** Runs a program beside the interpreters, and returns its result. A missing program has exit code 127. */
  exec(args: string[], options: CommandOptions = {}): Promise<SessionResult> {
    const { key, signal, ...rest } = options;
    return this.#work("/commands", { args, ...rest }, key, signal);
  }

  /** Starts a program in the background, and returns the task. */
  start(args: string[], options: Omit<CommandOptions, "key" | "signal"> = {}): Promise<Task> {
    return this.#begin("/commands", { args, ...options });
  }

  /** Returns the commands in the background. */
  async commands(): Promise<Schemas["RunningCommand"][]> {
    return (await this.#http.json<{ commands: Schemas["RunningCommand"][] }>("GET", this.#at + "/commands")).commands;
  }

  /** Returns the session's state. A paused session stays paused. */
  info(): Promise<Schemas["Session"]> {
    return this.#http.json("GET", this.#at);
  }

  /** Writes the machine to the disk, and frees its memory. The next use resumes the session. */
  async pause(): Promise<void> {
    await this.#http.send("POST", this.#at + "/pause");
  }

  /** Resumes a paused session. */
  async resume(): Promise<void> {
    await this.#http.send("POST", this.#at + "/resume");
  }

  /** Returns copies of the session (1 to 16), each in a machine of its own. End each of them. */
  async fork(count = 1): Promise<Session[]> {
    const made = await this.#http.json<{ sessions: Schemas["Session"][] }>("POST", this.#at + "/fork", { json: { count } });
    return made.sessions.map((state) => new Session(this.#http, state));
  }

  /** Lets the session live for that many seconds from now on, and returns its state. */
  extend(lifeSeconds: number): Promise<Schemas["Session"]> {
    return this.#http.json("POST", this.#at + "/extend", { json: { lifeSeconds } });
  }

  /** Answers a question of the session's code. */
  answer(question: Schemas["Question"], verdict: Verdict): Promise<void> {
    return answer(this.#http, question, verdict);
  }

  /**
   * Returns the URL of an HTTP server in the machine. If the client has a token, requests to the URL need it. Throws
   * UnitaskError if the path has . or .. in it.
   */
  async url(port: number, path = "/"): Promise<string> {
    return (await this.#http.url()) + this.#at + portPath(port, path);
  }

  /** Sends a request to an HTTP server in the machine. Throws ServerError if there is no answer. */
  async fetch(port: number, path = "/", init: RequestInit = {}): Promise<Response> {
    const at = this.#at + portPath(port, path);
    const headers = Object.fromEntries(new Headers(init.headers));
    const { method = "GET", body = null, redirect = "follow", signal } = init;
    return this.#http.raw(method, at, { body, headers, redirect, signal: signal ?? undefined });
  }

  /**
   * Opens a terminal over WebSocket, with a shell or a command line. Binary messages are the terminal's input and
   * output. Messages of text are JSON: you may send {"resize": [columns, rows]}, and the last message is
   * {"exitCode": 0}. A server with tokens needs another WebSocket library, which sends headers.
   */
  async terminal(options: As & { command?: string; columns?: number; rows?: number } = {}): Promise<WebSocket> {
    const at = new URL((await this.#http.url()) + this.#at + "/terminal");
    at.protocol = at.protocol.replace("http", "ws");
    for (const [name, value] of Object.entries(options)) {
      if (value !== undefined) at.searchParams.set(name, String(value));
    }
    const socket = new WebSocket(at);
    socket.binaryType = "arraybuffer";
    return socket;
  }

  /** Ends the session. It is no error if the session has ended before. */
  async close(): Promise<void> {
    try {
      await this.#http.send("DELETE", this.#at);
    } catch (err) {
      if (!(err instanceof ApiError) || err.status !== 404) throw err;
    }
    await this.#answering;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
