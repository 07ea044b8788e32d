import { ServerError } from "./errors.js";
import { packaged } from "./program.js";

/** Milliseconds that the start of a server may take. */
const startTime = 60_000;

let running: Promise<string> | undefined;

/** Returns the address of this process's `unitask serve`. Starts it if it does not run. It ends with the process. */
export function localServer(): Promise<string> {
  if (running) return running;
  const begun = start(() => {
    if (running === begun) running = undefined;
  });
  return (running = begun);
}

/** Starts a server, and returns its address. Calls `ended` if the start fails, and when the server has ended. */
async function start(ended: () => void): Promise<string> {
  if (!globalThis.process?.env) throw new ServerError("name the server's url: no server can be started here");
  const { spawn } = await import("node:child_process");
  const found = await packaged();
  const program = found.env["UNITASK_BIN"] || found.program || "unitask";
  const child = spawn(program, ["serve", "--listen", "127.0.0.1:0", "--until-eof", "--drain", "1s"], {
    stdio: ["pipe", "ignore", "pipe"], // the server ends with its input, so with this process
    env: found.env,
    detached: true, // Ctrl-C is for this process only
  });
  const { stdin, stderr } = child;
  return new Promise((resolve, reject) => {
    let said = "";
    const fail = (why: string) => {
      ended();
      reject(new ServerError(why));
    };
    const timer = setTimeout(() => {
      child.kill();
      fail(`${program} serve did not start in ${startTime / 1000} s: ${said}`);
    }, startTime);
    stderr.setEncoding("utf8").on("data", (text: string) => {
      said = (said + text).slice(-4096);
      const found = /serving (http:\/\/[0-9.]+:[0-9]+)/.exec(said);
      if (!found?.[1]) return;
      clearTimeout(timer);
      child.unref(); // let this process end while the server runs
      for (const stream of [stdin, stderr]) (stream as unknown as { unref(): void }).unref();
      resolve(found[1]);
    });
    child.on("error", (err) => {
      clearTimeout(timer);
      fail(`start ${program}: ${err.message}: install it, set UNITASK_BIN to it, or UNITASK_URL to a server`);
    });
    child.on("close", () => { // after the last line of stderr
      clearTimeout(timer);
      fail(`${program} serve did not start: ${said}`);
    });
  });
}
