// Each block of the README runs.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

const root = new URL("../../", import.meta.url).pathname;
const readme = readFileSync(join(root, "README.md"), "utf8");
const blocks = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)].map((found) => found[1] ?? "");

test("the README's blocks", () => {
  assert.equal(blocks.length, 5);
  const dir = join(root, "dist", "readme");
  mkdirSync(dir, { recursive: true });
  for (const [i, block] of blocks.entries()) {
    // The package's own name leads to its built files.
    writeFileSync(join(dir, `${i}.ts`), block);
  }
  const types = spawnSync("node", [join(root, "node_modules/typescript/bin/tsc"), "--strict", "--module", "nodenext", "--target",
    "es2022", "--types", "node", ...blocks.map((_, i) => `${i}.ts`)], { cwd: dir, encoding: "utf8" });
  assert.equal(types.status, 0, types.stdout);
  // Users' own settings: no types of Node, and the package's declarations are checked.
  const compilerOptions = { strict: true, noEmit: true, module: "nodenext", target: "es2022", types: [], skipLibCheck: false };
  writeFileSync(join(dir, "tsconfig.json"), JSON.stringify({ compilerOptions, files: blocks.map((_, i) => `${i}.ts`) }));
  const checked = spawnSync("node", [join(root, "node_modules/typescript/bin/tsc"), "-p", "."], { cwd: dir, encoding: "utf8" });
  assert.equal(checked.status, 0, checked.stdout);
  for (const i of blocks.keys()) {
    const ran = spawnSync("node", [`${i}.js`], { cwd: dir, encoding: "utf8", timeout: 90_000 });
    assert.equal(ran.status, 0, `${blocks[i]}\n${ran.stdout}${ran.stderr}`);
  }
});
