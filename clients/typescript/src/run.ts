/// <reference lib="esnext.disposable" preserve="true" />
import { ApiError } from "./errors.js";
import type { Event } from "./events.js";
import type { Functions } from "./functions.js";
import { bytesOf, HTTP, pathOf, pause } from "./http.js";
import type { Schemas } from "./schema.js";

export type Verdict = Schemas["Verdict"]["verdict"];

/** Options of a run: the members of POST /v1/runs, and options of the client. */
export interface RunOptions extends Omit<Schemas["RunRequest"], "code" | "language" | "files" | "clientTools"> {
  /** python if not given. */
  language?: string;
  /** {name: content}, or the API's list. */
  files?: Record<string, string> | Schemas["RunRequest"]["files"];
  /** Ends the wait, and the run if it has no key. */
  signal?: AbortSignal;
  /** Gets each event as it comes. */
  onEvent?: (event: Event) => void | Promise<void>;
  /** Gets each question about a host in `ask`, and returns the answer. */
  onQuestion?: (question: Schemas["Question"]) => Verdict | Promise<Verdict>;
  /** Your functions, which the code calls one at a time, each within a minute. */
  functions?: Functions;
  /** Idempotency-Key: the same call never begins the work twice. */
  key?: string;
}

/** Returns files in the API's form. */
export function filesOf(files: RunOptions["files"]): Schemas["RunRequest"]["files"] {
  if (!files || Array.isArray(files)) return files;
  return Object.entries(files).map(([name, content]) => ({ name, content }));
}

/** A file that a run left in /out. */
export class Artifact {
  readonly path: string;
  readonly size: number;
  readonly sha256: string;
  readonly mode: string;
  readonly #http: HTTP;
  readonly #run: string;

  constructor(http: HTTP, run: string, is: Schemas["Artifact"]) {
    this.#http = http;
    this.#run = run;
    ({ path: this.path, size: this.size, sha256: this.sha256, mode: this.mode } = is);
  }

  /** Returns the file's bytes. */
  async bytes(): Promise<Uint8Array> {
    const answer = await this.#http.send("GET", pathOf("runs", this.#run, "artifacts", ...this.path.split("/")));
    return new Uint8Array(await answer.arrayBuffer());
  }

  /** Returns the file's text, decoded as UTF-8. */
  async text(): Promise<string> {
    return new TextDecoder().decode(await this.bytes());
  }
}

/** How a run ended. Code that fails has a result, too: see `ok`, and `check` of this package. */
export type RunResult = Omit<Schemas["RunResult"], "artifacts"> & {
  /** The code ended by itself, with exit code 0. */
  ok: boolean;
  stdoutBytes: Uint8Array;
  stderrBytes: Uint8Array;
  artifacts: Artifact[];
};

/** Returns a result with the members that the client computes. */
export function resultOf(http: HTTP, is: Schemas["RunResult"]): RunResult {
  const artifacts = (is.artifacts ?? []).map((one) => new Artifact(http, is.runId, one));
  return Object.assign(is, streamsOf(is), { artifacts });
}

/** Returns the members that the client computes for the result of a run, step or command. */
export function streamsOf(is: Schemas["RunResult"] | Schemas["SessionResult"]) {
  const bytes = (text: string, base64?: string) => (base64 ? bytesOf(base64) : new TextEncoder().encode(text));
  return {
    ok: is.outcome === "exited" && is.exitCode === 0,
    stdoutBytes: bytes(is.stdout, is.stdoutBase64),
    stderrBytes: bytes(is.stderr, is.stderrBase64),
  };
}

/** Waits for a run's end and returns its result. */
export async function waitFor(http: HTTP, id: string, signal?: AbortSignal): Promise<RunResult> {
  for (;;) {
    const began = Date.now();
    try {
      const query = { waitSeconds: 50 };
      return resultOf(http, await http.json("GET", pathOf("runs", id, "result"), { query, signal }));
    } catch (err) {
      if (!(err instanceof ApiError) || err.code !== "run.running") throw err;
      // For a run of another process, the server answers without waiting.
      await pause(Math.max(0, err.retryAfterMs - (Date.now() - began)), signal);
    }
  }
}

/** Answers a question. */
export async function answer(http: HTTP, question: Schemas["Question"], verdict: Verdict): Promise<void> {
  const { host, request } = question;
  await http.send("POST", pathOf("runs", question.run, "approvals"), {
    json: { host, verdict, ...(request ? { request } : {}) },
  });
}

/** A run, which may have ended. `await using` cancels it at the end of its block. */
export class Run {
  readonly id: string;
  readonly #http: HTTP;

  constructor(http: HTTP, id: string) {
    this.#http = http;
    this.id = id;
  }

  /** Yields the run's events, its output included, until it has ended. Begins after the event number `after`. */
  events(after = 0): AsyncGenerator<Event, void> {
    return this.#http.events(pathOf("runs", this.id, "events"), after);
  }

  /** Waits for the run's end and returns its result. */
  result(): Promise<RunResult> {
    return waitFor(this.#http, this.id);
  }

  /** Ends the run. A run that has ended stays as it is. */
  async cancel(): Promise<void> {
    await this.#http.send("POST", pathOf("runs", this.id, "cancel"));
  }

  /** Returns the run's request, its grants, and how it ended. */
  record(): Promise<Schemas["Run"]> {
    return this.#http.json("GET", pathOf("runs", this.id));
  }

  /** Returns the run's output on a stream so far. */
  async output(stream: "stdout" | "stderr" = "stdout"): Promise<Uint8Array> {
    return new Uint8Array(await (await this.#http.send("GET", pathOf("runs", this.id, stream))).arrayBuffer());
  }

  /** Returns the log of the run's network requests: a JSON object in each line. */
  async netlog(): Promise<string> {
    return (await this.#http.send("GET", pathOf("runs", this.id, "netlog"))).text();
  }

  /** Returns the files that the code left in /out. */
  async artifacts(): Promise<Artifact[]> {
    const found = await this.#http.json<Schemas["ArtifactList"]>("GET", pathOf("runs", this.id, "artifacts"));
    return found.artifacts.map((one) => new Artifact(this.#http, this.id, one));
  }

  /** Answers a question of the run. */
  answer(question: Schemas["Question"], verdict: Verdict): Promise<void> {
    return answer(this.#http, question, verdict);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.cancel();
  }
}
