/** Run code that nobody trusts in a fresh virtual machine. */
import { ApiError } from "./errors.js";
import type { Event } from "./events.js";
import { follow, toolsOf } from "./functions.js";
import { type ClientOptions, HTTP, pathOf } from "./http.js";
import { answer, filesOf, resultOf, Run, type RunOptions, type RunResult, type Verdict, waitFor } from "./run.js";
import type { Schemas } from "./schema.js";
import { Session, type SessionOptions } from "./session.js";

export { ApiError, check, CodeError, ServerError, UnitaskError } from "./errors.js";
export { Event } from "./events.js";
export type { DescribedFunction, Functions, ToolFunction } from "./functions.js";
export type { ClientOptions } from "./http.js";
export { Artifact, Run, type RunOptions, type RunResult, type Verdict } from "./run.js";
export type { Schemas } from "./schema.js";
export { Files, Session, type SessionOptions, type SessionResult, Task, Values } from "./session.js";

/** A client of `unitask serve`. Without an address, the client starts a server on this computer (Node only). */
export class Client {
  readonly #http: HTTP;

  constructor(options: ClientOptions = {}) {
    this.#http = new HTTP(options);
  }

  /** Returns the server's address. Without one, this starts the server. Throws ServerError if it does not start. */
  url(): Promise<string> {
    return this.#http.url();
  }

  /**
   * Runs code in a fresh machine and returns its result. Code that fails has a result, too. A run without a key ends
   * with its signal or connection. A run with a key goes on. Throws ApiError if the server refuses the run, and
   * ServerError if the server does not answer.
   */
  async run(code: string, options: RunOptions = {}): Promise<RunResult> {
    const { language = "python", files, signal, onEvent, onQuestion, functions, key, ...rest } = options;
    const json = { code, language, files: filesOf(files), clientTools: toolsOf(functions), ...rest };
    if (!onEvent && !onQuestion && !functions) {
      return resultOf(this.#http, await this.#http.json("POST", "/v1/runs", { json, key, signal }));
    }
    const run = await this.#begin(json, key, signal);
    try {
      await follow(this.#http, run.id, functions, signal, async (event) => {
        await onEvent?.(event);
        if (event.kind === "question" && onQuestion) await this.#ask(event, onQuestion);
      });
      return await waitFor(this.#http, run.id, signal);
    } catch (err) {
      if (!key) await run.cancel().catch(() => undefined);
      throw err;
    }
  }

  async #ask(event: Event, onQuestion: NonNullable<RunOptions["onQuestion"]>): Promise<void> {
    const question = event.data as unknown as Schemas["Question"];
    try {
      await this.answer(question, await onQuestion(question));
    } catch (err) {
      if (!(err instanceof ApiError) || err.code !== "approval.none") throw err; // answered elsewhere, or too late
    }
  }

  async #begin(json: object, key?: string, signal?: AbortSignal): Promise<Run> {
    const begun = await this.#http.json<Schemas["RunState"]>("POST", "/v1/runs", { query: { wait: false }, json, key, signal });
    return new Run(this.#http, begun.runId);
  }

  /** Begins a run and returns it. */
  start(code: string, options: Omit<RunOptions, "onEvent" | "onQuestion" | "functions" | "signal"> = {}): Promise<Run> {
    const { language = "python", files, key, ...rest } = options;
    return this.#begin({ code, language, files: filesOf(files), ...rest }, key);
  }

  /** Returns a run by its id, without asking the server. */
  getRun(id: string): Run {
    return new Run(this.#http, id);
  }

  /** Yields your runs, the newest first. `status` selects those with this outcome or status. */
  async *runs(options: { status?: string } = {}): AsyncGenerator<Schemas["RunSummary"], void> {
    let before: string | undefined;
    do {
      const query = { status: options.status, before };
      const page: Schemas["RunList"] = await this.#http.json("GET", "/v1/runs", { query });
      yield* page.runs;
      before = page.next;
    } while (before);
  }

  /** Starts a session. End it with its close, or declare it with `await using`, which ends it with the block. */
  async session(options: SessionOptions = {}): Promise<Session> {
    const { language = "python", files, functions, key, ...rest } = options;
    const json = { language, files: filesOf(files), clientTools: toolsOf(functions), ...rest };
    return new Session(this.#http, await this.#http.json("POST", "/v1/sessions", { json, key }), functions);
  }

  /** Returns a session of yours by its id. Throws ApiError with status 404 if you have no such session. */
  async getSession(id: string): Promise<Session> {
    return new Session(this.#http, await this.#http.json("GET", pathOf("sessions", id)));
  }

  /** Returns your sessions. */
  async sessions(): Promise<Schemas["Session"][]> {
    return (await this.#http.json<{ sessions: Schemas["Session"][] }>("GET", "/v1/sessions")).sessions;
  }

  /** Returns the open questions of your runs and sessions. */
  async questions(): Promise<Schemas["Question"][]> {
    return (await this.#http.json<{ questions: Schemas["Question"][] }>("GET", "/v1/approvals")).questions;
  }

  /**
   * Answers a question: deny, once (this connection or request) or allow (the host, in this run). Throws ApiError with
   * the code approval.none if somebody else has answered, or it is too late.
   */
  answer(question: Schemas["Question"], verdict: Verdict): Promise<void> {
    return answer(this.#http, question, verdict);
  }

  /** Yields the events begun and ended of your runs from now on. The stream does not end by itself. */
  events(): AsyncGenerator<Event, void> {
    return this.#http.events("/v1/events");
  }

  /** Returns the server's version, languages and images. */
  about(): Promise<Schemas["About"]> {
    return this.#http.json("GET", "/v1/about");
  }

  /** Returns the images. */
  async images(): Promise<Schemas["Image"][]> {
    return (await this.#http.json<{ images: Schemas["Image"][] }>("GET", "/v1/images")).images;
  }

  /** Returns whether code can run on the server, and what the server lacks. */
  doctor(): Promise<Schemas["Report"]> {
    return this.#http.json("GET", "/v1/doctor");
  }
}
