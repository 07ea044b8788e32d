import { ApiError } from "./errors.js";
import type { Event } from "./events.js";
import { type HTTP, pathOf } from "./http.js";
import type { Schemas } from "./schema.js";

/** A function of this program. The code calls it with one object. What it throws is a ToolError in the code. */
export type ToolFunction = (args: any) => unknown;

/** Functions by the module from which the code imports them: `{ shop: { total: ({ number }) => … } }`. */
export type Functions = Record<string, Record<string, ToolFunction | DescribedFunction>>;

/** A function and its description. The server checks arguments against `inputSchema`, a JSON Schema of an object. */
export interface DescribedFunction {
  call: ToolFunction;
  description?: string;
  inputSchema?: Record<string, unknown>;
  outputSchema?: Record<string, unknown>;
}

const described = (one: ToolFunction | DescribedFunction): DescribedFunction =>
  typeof one === "function" ? { call: one } : one;

/** Returns the descriptions of functions as the API has them. */
export function toolsOf(functions?: Functions): Schemas["RunRequest"]["clientTools"] {
  if (!functions) return undefined;
  const groups = Object.entries(functions).map(([server, group]) => {
    const tools = Object.entries(group).map(([name, one]) => {
      const { call: _, ...rest } = described(one);
      return { name, ...rest };
    });
    return [server, tools];
  });
  return Object.fromEntries(groups);
}

/** Follows the events of a run or a session to its end, and answers the calls of its code. `hear` gets each event. */
export async function follow(
  http: HTTP, id: string, functions?: Functions, signal?: AbortSignal, hear?: (event: Event) => Promise<void>,
): Promise<void> {
  const called = new Set<unknown>();
  for await (const event of http.events(pathOf("runs", id, "events"), 0, { signal })) {
    await hear?.(event);
    for (const one of functions ? await callsOf(http, id, event) : []) {
      if (!called.has(one.call)) await callFunction(http, id, one, functions!);
      called.add(one.call);
    }
  }
}

/** Returns the calls that an event tells of. Among lost events there may be some. */
async function callsOf(http: HTTP, run: string, event: Event): Promise<Schemas["ToolCall"][]> {
  if (event.kind === "toolCall") return [event.data as unknown as Schemas["ToolCall"]];
  if (event.kind !== "lost") return [];
  return (await http.json<{ calls: Schemas["ToolCall"][] }>("GET", pathOf("runs", run, "calls"))).calls;
}

/** Calls the function that a run's code has called, and answers with its result. */
export async function callFunction(http: HTTP, run: string, asked: Schemas["ToolCall"], functions: Functions): Promise<void> {
  const { call, server, tool, arguments: args } = asked;
  let json: Schemas["ToolAnswer"];
  try {
    if (!Object.hasOwn(functions, server) || !Object.hasOwn(functions[server]!, tool)) {
      throw new Error(`there is no function ${server}.${tool}`);
    }
    const result = JSON.stringify((await described(functions[server]![tool]!).call(args)) ?? null);
    if (result === undefined) throw new TypeError("the result is not JSON");
    json = { result: JSON.parse(result) };
  } catch (err) {
    json = errorOf(err);
  }
  const tell = async (json: Schemas["ToolAnswer"]) => {
    try {
      await http.send("POST", pathOf("runs", run, "calls", call), { json });
    } catch (err) {
      if (!(err instanceof ApiError) || err.code !== "call.none") throw err; // it is too late
    }
  };
  try {
    await tell(json);
  } catch (err) {
    if (!(err instanceof ApiError) || ![400, 413, 422].includes(err.status)) throw err;
    await tell(errorOf(err)); // the server does not take the result, as it is too large
  }
}

function errorOf(err: unknown): { error: string } {
  try {
    return { error: String(err).slice(0, 60_000) };
  } catch {
    return { error: "an error without a text" };
  }
}
