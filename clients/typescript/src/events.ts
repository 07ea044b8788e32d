import { ServerError } from "./errors.js";
import { bytesOf } from "./http.js";

/** Characters of the largest server-sent event that the client accepts. */
const maxEvent = 16 << 20;

/**
 * An event of a run, a step, a command or a stream of the server. `kind` is begun, note, started, stdout, stderr,
 * question, lost or end. Client.events has begun and ended, and Files.watch has ready, change and overflow. docs/api.md
 * has the members of `data`.
 */
export class Event {
  readonly number: number;
  readonly kind: string;
  readonly data: Record<string, unknown>;

  constructor(number: number, kind: string, data: Record<string, unknown>) {
    this.number = number;
    this.kind = kind;
    this.data = data;
  }

  /** The output of an event stdout or stderr, as bytes. */
  get bytes(): Uint8Array {
    const { text = "", base64 } = this.data;
    return typeof base64 === "string" ? bytesOf(base64) : new TextEncoder().encode(String(text));
  }

  /** The output of an event stdout or stderr, as text. */
  get text(): string {
    return new TextDecoder().decode(this.bytes);
  }
}

/** Yields the events of a stream. Throws ServerError if the connection broke, or an event is too large or malformed. */
export async function* readEvents(stream: ReadableStream<Uint8Array>): AsyncGenerator<Event, void> {
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  let rest = "", kind = "", id = 0, data: string[] = [], size = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((err: unknown) => {
        throw err instanceof TypeError ? new ServerError(`the connection broke: ${err.message}`, { cause: err }) : err;
      });
      if (done) return;
      const text = decoder.decode(value, { stream: true });
      size += text.length;
      if (size > maxEvent) throw new ServerError("the server sent an event that is too large");
      const lines = (rest + text).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines.map((one) => one.replace(/\r$/, ""))) {
        const [, name = "", value = ""] = /^([^:]*)(?:: ?([\s\S]*))?$/.exec(line) ?? [];
        if (line === "") {
          if (data.length) yield new Event(id, kind, objectOf(data.join("\n")));
          kind = "";
          data = [];
          size = rest.length;
        } else if (name === "event") kind = value;
        else if (name === "data") data.push(value);
        else if (name === "id") id = Number(value);
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function objectOf(data: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch (err) {
    throw new ServerError(`the server sent what is no event: ${String(err)}`, { cause: err });
  }
  if (typeof value !== "object" || value === null) throw new ServerError("the server sent what is no event");
  return value as Record<string, unknown>;
}
