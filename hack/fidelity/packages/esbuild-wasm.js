
		const fs = require('fs'), path = require('path'); globalThis.self = globalThis; const esbuild = require('esbuild-wasm/lib/browser.js'); const dir = path.dirname(require.resolve('esbuild-wasm/package.json'));
		(async () => { await esbuild.initialize({ wasmModule: await WebAssembly.compile(fs.readFileSync(dir + '/esbuild.wasm')), worker: false });
		const r = await esbuild.transform('enum E { A, B } export const f = <T,>(x: T): T => x satisfies T; console.log(E.B)', { loader: 'ts', minify: true, format: 'cjs' }); console.log(r.code, r.warnings.length); process.exit() })()