import type { Schemas } from "./schema.js";

/** Any error of this package. */
export class UnitaskError extends Error {
  override name = "UnitaskError";
}

/** The server could not be found, started or reached. */
export class ServerError extends UnitaskError {
  override name = "ServerError";
}

/** Code did not end with exit code 0. `check` throws this error. */
export class CodeError extends UnitaskError {
  override name = "CodeError";
  readonly result: Schemas["RunResult"] | Schemas["SessionResult"];

  constructor(result: Schemas["RunResult"] | Schemas["SessionResult"]) {
    const last = result.stderr.trim().split("\n").at(-1);
    super(`the code ended with ${result.outcome}, ${result.error ?? `exit code ${result.exitCode}`}${last ? `: ${last}` : ""}`);
    this.result = result;
  }
}

/**
 * The server refused a request. `code` is stable (docs/api.md lists the codes), and `remedy` says what to do. If
 * `retryable`, the same request may succeed later.
 */
export class ApiError extends UnitaskError {
  override name = "ApiError";
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly remedy: string;
  readonly retryable: boolean;
  /** Milliseconds after which to try again, 0 if the server says nothing. */
  readonly retryAfterMs: number;

  constructor(status: number, problem: Partial<Schemas["Problem"]>) {
    const detail = problem.detail ?? problem.title ?? `the server answered with ${status}`;
    super(problem.remedy ? `${detail} (${problem.remedy})` : detail);
    this.status = status;
    this.code = problem.code ?? "http";
    this.detail = detail;
    this.remedy = problem.remedy ?? "";
    this.retryable = problem.retryable ?? false;
    this.retryAfterMs = problem.retryAfterMs ?? 0;
  }
}

/** Returns the result. Throws CodeError if the code did not end with exit code 0. */
export function check<R extends Schemas["RunResult"] | Schemas["SessionResult"]>(result: R): R {
  if (result.outcome !== "exited" || result.exitCode !== 0) throw new CodeError(result);
  return result;
}
