#!/usr/bin/env node
// The command unitask of the npm package. It starts the program in this computer's package.
import { spawn } from "node:child_process";
import { packaged } from "./program.js";

const { program, env } = await packaged();
if (!program) {
  console.error(`unitask: there is no program for ${process.platform} on ${process.arch} beside this package. ` +
    "npm install without --omit=optional brings it for Linux (x64, arm64) and macOS (arm64)");
  process.exit(127);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit", env });
// Ctrl-C in a terminal reaches both processes. Every other signal reaches this process only.
const terminal = [process.stdin, process.stdout, process.stderr].some((stream) => stream.isTTY);
for (const signal of ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"] as const) {
  process.on(signal, () => {
    if (!terminal || (signal !== "SIGINT" && signal !== "SIGQUIT")) child.kill(signal);
  });
}
child.on("error", (err) => {
  console.error(`unitask: start ${program}: ${err.message}`);
  process.exit(127);
});
child.on("exit", (code, signal) => {
  if (!signal) process.exit(code ?? 1);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
