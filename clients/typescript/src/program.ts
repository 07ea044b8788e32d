/** The program of this computer's npm package, and its environment. */
export interface Packaged {
  program: string | undefined; // its path; undefined if there is no package for this computer
  env: Record<string, string | undefined>;
}

/** Finds the program of this computer's npm package, such as `@unitask/linux-x64`. Node only. */
export async function packaged(): Promise<Packaged> {
  const { createRequire } = await import("node:module");
  const { existsSync } = await import("node:fs");
  const { dirname, join } = await import("node:path");
  const { platform, arch, env } = globalThis.process;
  const find = (name: string, file: string) => {
    try {
      const manifest = createRequire(import.meta.url).resolve(`@unitask/${name}${platform}-${arch}/package.json`);
      const path = join(dirname(manifest), file);
      return existsSync(path) ? path : undefined;
    } catch {
      return undefined;
    }
  };
  const share = env["UNITASK_SHARE"] ?? find("parts-", "share/unitask");
  return { program: find("", "unitask"), env: share ? { ...env, UNITASK_SHARE: share } : env };
}
