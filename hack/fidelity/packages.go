package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask"
)

// pack is a package of the registry and a program that does real work with it. The program prints the same everywhere.
type pack struct {
	name     string
	install  []string // the packages for npm to install, with versions
	program  string   // CommonJS, or an ES module if it imports
	server   *server  // the server that it uses, on PORT
	memoryMB int      // 0 is 512
}

// server is a program on this host.
type server struct {
	binary string // on PATH, or below /usr/lib/postgresql/*/bin
	from   string // the package that contains it
	start  func(ctx context.Context, binary, dir string, port int) (*exec.Cmd, error)
}

var packs = []pack{
	{name: "lodash", install: []string{"lodash@4.17.21"}, program: `
		const _ = require('lodash'); const rows = _.range(5000).map((i) => ({ id: i, g: i % 7, v: (i * 7919) % 1000 }));
		console.log(_(rows).groupBy('g').mapValues((r) => _.sumBy(r, 'v')).value(), _.isEqual(_.cloneDeep(rows), rows), _.template('<%= a %>!')({ a: 'x' }), _.debounce.length)`},
	{name: "zod", install: []string{"zod@4.1.12"}, program: `
		const { z } = require('zod'); const User = z.object({ name: z.string().min(2), age: z.number().int().positive(), tags: z.array(z.enum(['a', 'b'])).default([]) });
		console.log(User.parse({ name: 'Ada', age: 36 }), User.safeParse({ name: 'A', age: -1, tags: ['c'] }).error.issues.map((i) => i.path.join('.') + ' ' + i.code))`},
	{name: "ajv", install: []string{"ajv@8.17.1"}, program: `
		const Ajv = require('ajv'); const ajv = new Ajv({ allErrors: true }); const validate = ajv.compile({ type: 'object', properties: { n: { type: 'integer', minimum: 3 }, s: { type: 'string', pattern: '^x+$' } }, required: ['n'], additionalProperties: false });
		console.log(validate({ n: 3, s: 'xx' }), validate({ n: 1, s: 'y', z: 1 }), validate.errors.map((e) => e.instancePath + ' ' + e.message))`},
	{name: "acorn", install: []string{"acorn@8.15.0", "acorn-walk@8.3.4"}, program: `
		const acorn = require('acorn'), walk = require('acorn-walk'), fs = require('fs'); const kinds = {};
		walk.full(acorn.parse(fs.readFileSync(require.resolve('acorn'), 'utf8'), { ecmaVersion: 2022 }), (n) => { kinds[n.type] = (kinds[n.type] ?? 0) + 1 }); console.log(kinds)`},
	{name: "csv-parse", install: []string{"csv-parse@6.1.0", "csv-stringify@6.6.0"}, program: `
		const { parse } = require('csv-parse'), { stringify } = require('csv-stringify/sync'), fs = require('fs');
		fs.writeFileSync('/tmp/in.csv', stringify(Array.from({ length: 20000 }, (_, i) => [i, 'a "quoted" value, ' + i, 'line\nbreak']), { header: true, columns: ['id', 'text', 'more'] }));
		let n = 0, sum = 0; fs.createReadStream('/tmp/in.csv').pipe(parse({ columns: true })).on('data', (r) => { n++; sum += +r.id + r.text.length }).on('end', () => console.log(n, sum))`},
	{name: "markdown-it", install: []string{"markdown-it@14.1.0"}, program: `
		const md = require('markdown-it')({ html: true, linkify: true, typographer: true }); const text = '# Title\n\n| a | b |\n|---|---|\n| 1 | "x" |\n\n- https://example.com\n  1. *deep* **b** ~~s~~\n\n` + "```js\\ncode\\n```" + `\n';
		console.log(md.render(text), md.render(text.repeat(200)).length)`},
	{name: "pngjs", install: []string{"pngjs@7.0.0"}, program: `
		const { PNG } = require('pngjs'), crypto = require('crypto'); const png = new PNG({ width: 300, height: 200 });
		for (let i = 0; i < png.data.length; i++) png.data[i] = (i * 31) & 255; const buf = PNG.sync.write(png), back = PNG.sync.read(buf);
		console.log(buf.length, back.width, back.height, crypto.createHash('sha256').update(back.data).digest('hex'))`},
	{name: "typescript", install: []string{"typescript@5.9.3"}, memoryMB: 1024, program: `
		const ts = require('typescript'), fs = require('fs'); fs.mkdirSync('/tmp/ts', { recursive: true }); fs.writeFileSync('/tmp/ts/a.ts', 'import { f } from "./b"; const n: string = f(1); export class C<T> { constructor(readonly x: T) {} } console.log(n);'); fs.writeFileSync('/tmp/ts/b.ts', 'export const f = (x: number) => x ** 2;');
		const program = ts.createProgram(['/tmp/ts/a.ts'], { target: ts.ScriptTarget.ES2015, module: ts.ModuleKind.CommonJS, outDir: '/tmp/ts/out', types: [] });
		console.log(ts.getPreEmitDiagnostics(program).map((d) => d.code + ' ' + ts.flattenDiagnosticMessageText(d.messageText, ' ')), program.emit().emitSkipped, fs.readdirSync('/tmp/ts/out'), fs.readFileSync('/tmp/ts/out/a.js', 'utf8'))`},
	{name: "@babel/core", install: []string{"@babel/core@7.28.5", "@babel/preset-env@7.28.5"}, memoryMB: 1024, program: `
		const babel = require('@babel/core'); console.log(babel.transformSync('class A { #p = 1; async *g() { yield* [this.#p ?? 2]; } } export const { a, ...rest } = await 1;'.replace(' await 1', ' {a: 1}'), { presets: [['@babel/preset-env', { targets: 'ie 11' }]], configFile: false, babelrc: false, filename: 'x.js' }).code.length > 2000, babel.parseSync('a?.b', { configFile: false }).program.body[0].expression.type)`},
	{name: "esbuild-wasm", install: []string{"esbuild-wasm@0.25.12"}, memoryMB: 1024, program: `
		const fs = require('fs'), path = require('path'); globalThis.self = globalThis; const esbuild = require('esbuild-wasm/lib/browser.js'); const dir = path.dirname(require.resolve('esbuild-wasm/package.json'));
		(async () => { await esbuild.initialize({ wasmModule: await WebAssembly.compile(fs.readFileSync(dir + '/esbuild.wasm')), worker: false });
		const r = await esbuild.transform('enum E { A, B } export const f = <T,>(x: T): T => x satisfies T; console.log(E.B)', { loader: 'ts', minify: true, format: 'cjs' }); console.log(r.code, r.warnings.length); process.exit() })()`},
	{name: "express, ws, undici", install: []string{"express@5.1.0", "ws@8.18.3", "undici@7.16.0"}, program: `
		const express = require('express'), { WebSocketServer, WebSocket } = require('ws'), { request, Agent } = require('undici'); const app = express(); app.use(express.json({ limit: '5mb' }));
		app.post('/sum/:k', (q, r) => r.json({ k: q.params.k, sum: q.body.reduce((a, b) => a + b, 0), q: q.query })); app.get('/big', (q, r) => r.send('x'.repeat(3e6))); app.use((e, q, r, n) => r.status(418).send(e.type));
		const s = app.listen(0, '127.0.0.1', async () => { const u = 'http://127.0.0.1:' + s.address().port; const dispatcher = new Agent();
		const post = (body) => request(u + '/sum/a?b=1', { method: 'POST', headers: { 'content-type': 'application/json' }, body, dispatcher });
		console.log(await (await post(JSON.stringify(Array.from({ length: 100000 }, (_, i) => i)))).body.json()); const bad = await post('{'); console.log(bad.statusCode, await bad.body.text()); console.log((await (await request(u + '/big', { dispatcher })).body.text()).length);
		console.log((await Promise.all(Array.from({ length: 50 }, async (_, i) => (await (await post('[' + i + ']')).body.json()).sum))).reduce((a, b) => a + b));
		const wss = new WebSocketServer({ server: s }); wss.on('connection', (c) => c.on('message', (m, b) => c.send(m, { binary: b }))); const c = new WebSocket(u.replace('http', 'ws')); let n = 0;
		c.on('open', () => { c.send('hello'); c.send(Buffer.alloc(500000)) }).on('message', (m) => { n += m.length; if (n === 500005) c.close(1000) }).on('close', async (code) => { console.log(n, code); await dispatcher.close(); s.close(); s.closeAllConnections() }) })`},
	{name: "sql.js", install: []string{"sql.js@1.13.0"}, program: `
		require('sql.js')().then((SQL) => { const db = new SQL.Database(); db.run('create table t (a, b); '); const st = db.prepare('insert into t values (?, ?)'); for (let i = 0; i < 5000; i++) st.run([i, 'v' + i % 9]);
		console.log(JSON.stringify(db.exec('select b, count(*), sum(a) from t group by b order by b')), db.export().length > 50000) })`},
	{name: "sharp", install: []string{"sharp@0.34.5"}, memoryMB: 1024, program: `
		const sharp = require('sharp'); (async () => { const img = await sharp({ create: { width: 400, height: 300, channels: 3, background: '#336699' } }).composite([{ input: { create: { width: 50, height: 50, channels: 4, background: '#f008' } }, left: 10, top: 20 }]).png().toBuffer();
		const m = await sharp(img).resize(100).rotate(90).webp({ quality: 80 }).toBuffer({ resolveWithObject: true }); console.log(m.info.width, m.info.height, m.info.format, (await sharp(img).raw().toBuffer()).subarray(0, 6), (await sharp(img).stats()).channels.map((c) => c.min)) })()`},
	{name: "pdf-lib", install: []string{"pdf-lib@1.17.1"}, program: `
		const { PDFDocument, StandardFonts, rgb } = require('pdf-lib'); (async () => { const d = await PDFDocument.create(); d.setCreationDate(new Date(0)); d.setModificationDate(new Date(0)); const f = await d.embedFont(StandardFonts.Helvetica);
		for (let i = 0; i < 20; i++) d.addPage([300, 300]).drawText('page ' + i, { x: 50, y: 150, size: 20, font: f, color: rgb(0, 0.5, 1) }); const bytes = await d.save(); const back = await PDFDocument.load(bytes); console.log(bytes.length, back.getPageCount(), f.widthOfTextAtSize('width', 12)) })()`},
	{name: "exceljs", install: []string{"exceljs@4.4.0"}, program: `
		const ExcelJS = require('exceljs'); (async () => { const w = new ExcelJS.Workbook(), s = w.addWorksheet('S'); s.columns = [{ header: 'A', key: 'a' }, { header: 'B', key: 'b' }]; for (let i = 0; i < 500; i++) s.addRow({ a: i, b: { formula: 'A' + (i + 2) + '*2', result: i * 2 } });
		await w.xlsx.writeFile('/tmp/x.xlsx'); const r = new ExcelJS.Workbook(); await r.xlsx.readFile('/tmp/x.xlsx'); let sum = 0; r.getWorksheet('S').eachRow((row, n) => { if (n > 1) sum += row.getCell(2).result }); console.log(sum, r.getWorksheet('S').rowCount) })()`},
	{name: "d3", install: []string{"d3@7.9.0"}, program: `
		import * as d3 from 'd3'; const data = d3.range(1000).map((i) => ({ x: i, y: Math.round(1000 * Math.sin(i / 50)), g: 'abc'[i % 3] }));
		console.log(d3.rollups(data, (v) => d3.mean(v, (d) => d.y).toFixed(6), (d) => d.g), d3.scaleLinear([0, 1000], [0, 500]).ticks(5), d3.line().x((d) => d.x).y((d) => d.y)(data).length, d3.hierarchy({ children: [{ v: 2 }, { v: 3 }] }).sum((d) => d.v ?? 0).value, d3.csvParse('a,b\n1,2').columns)`},
	{name: "jimp", install: []string{"jimp@1.6.0"}, memoryMB: 1024, program: `
		const { Jimp } = require('jimp'), crypto = require('crypto'); (async () => { const i = new Jimp({ width: 120, height: 80, color: 0x336699ff }); for (let x = 0; x < 120; x++) i.setPixelColor(0xff0000ff, x, x % 80); i.resize({ w: 60, h: 40 }).greyscale().rotate(180);
		const buf = await i.getBuffer('image/png'), back = await Jimp.read(buf); console.log(back.width, back.height, crypto.createHash('sha256').update(back.bitmap.data).digest('hex')) })()`},
	{name: "pg", install: []string{"pg@8.16.3"}, server: &postgres, program: `
		const { Client, Pool } = require('pg'); (async () => { const c = new Client({ host: '127.0.0.1', port: process.env.PORT, user: 'postgres', database: 'postgres' }); await c.connect(); await c.query('drop table if exists t; create table t (id int primary key, j jsonb, b bytea)');
		for (let i = 0; i < 200; i++) await c.query('insert into t values ($1, $2, $3)', [i, { i, s: 'x'.repeat(i) }, Buffer.alloc(i, i)]); console.log((await c.query("select count(*)::int n, sum((j->>'i')::int)::int s, sum(length(b))::int l from t")).rows); console.log((await c.query('select repeat($1, 3000000) x', ['y'])).rows[0].x.length);
		await c.query('select nonsense').catch((e) => console.log(e.code)); await c.end(); const p = new Pool({ host: '127.0.0.1', port: process.env.PORT, user: 'postgres', database: 'postgres', max: 5 }); console.log((await Promise.all(Array.from({ length: 40 }, (_, i) => p.query('select $1::int + 1 n', [i])))).reduce((a, r) => a + r.rows[0].n, 0)); await p.end() })()`},
	{name: "redis", install: []string{"redis@5.9.0"}, server: &redis, program: `
		const { createClient } = require('redis'); (async () => { const c = createClient({ url: 'redis://127.0.0.1:' + process.env.PORT }); await c.connect(); await c.flushAll(); await Promise.all(Array.from({ length: 1000 }, (_, i) => c.set('k' + i, 'v'.repeat(i)))); console.log((await c.mGet(['k1', 'k999', 'none'])).map((x) => x?.length), await c.dbSize());
		await c.zAdd('z', [{ score: 2, value: 'b' }, { score: 1, value: 'a' }]); console.log(await c.zRange('z', 0, -1)); const sub = c.duplicate(); await sub.connect(); const got = new Promise((r) => sub.subscribe('ch', (m) => r(m))); await new Promise((r) => setTimeout(r, 200)); await c.publish('ch', 'hello'); console.log(await got); await sub.close(); console.log((await c.multi().incr('n').incr('n').exec())); await c.close() })()`},
}

var postgres = server{binary: "postgres", from: "postgresql",
	start: func(ctx context.Context, binary, dir string, port int) (*exec.Cmd, error) {
		// The server refuses to run as root.
		as := func(args ...string) *exec.Cmd {
			if os.Getuid() == 0 {
				args = append([]string{"setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"}, args...)
			}
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Dir = dir
			return cmd
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			return nil, err
		}
		data := filepath.Join(dir, "data")
		if out, err := as(filepath.Join(filepath.Dir(binary), "initdb"), "-D", data, "-U", "postgres", "--auth=trust",
			"--no-sync").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("initdb: %w\n%s", err, out)
		}
		return as(binary, "-D", data, "-p", fmt.Sprint(port), "-h", "127.0.0.1", "-k", "", "-F"), nil
	}}

var redis = server{binary: "redis-server", from: "redis-server",
	start: func(ctx context.Context, binary, dir string, port int) (*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, binary, "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--save", "", "--dir", dir)
		return cmd, nil
	}}

// find returns the path of the server's program; "" if it is missing.
func (s *server) find() string {
	if name, err := exec.LookPath(s.binary); err == nil {
		return name
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + s.binary)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

// serverPatience is how long a server may take until it listens.
const serverPatience = 30 * time.Second

// run starts the server on a free port of the loopback; stop ends it.
func (s *server) run(ctx context.Context) (port int, stop func(), err error) {
	binary := s.find()
	if binary == "" {
		return 0, nil, fmt.Errorf("no %s on this machine: apt-get install %s", s.binary, s.from)
	}
	dir, err := os.MkdirTemp("", "unitask-server-")
	if err != nil {
		return 0, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := s.start(ctx, binary, dir, port)
	if err == nil {
		err = cmd.Start()
	}
	stop = func() {
		cancel()
		if cmd != nil {
			_ = cmd.Wait()
		}
		os.RemoveAll(dir)
	}
	for deadline := time.Now().Add(serverPatience); err == nil; time.Sleep(50 * time.Millisecond) {
		c, dial := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if dial == nil {
			c.Close()
			return port, stop, nil
		}
		if time.Now().After(deadline) {
			err = fmt.Errorf("%s does not listen: %w", s.binary, dial)
		}
	}
	stop()
	return 0, nil, err
}

// packageLimit is the time limit of one program. Under TCG a guest is about ten times slower, and the host may be busy.
const packageLimit = 5 * time.Minute

// runPackages installs each package, runs its program on the host and on each kernel, and prints a table of the
// results.
func runPackages(ctx context.Context, o options) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return errors.New("npm is not on PATH: apt-get install npm")
	}
	base, err := os.MkdirTemp("", "unitask-packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	fmt.Print("| package |")
	for _, k := range o.kernels {
		fmt.Printf(" %s |", k)
	}
	fmt.Print("\n| --- |" + strings.Repeat(" --- |", len(o.kernels)) + "\n")
	failed := 0
	for i, p := range packs {
		if !strings.Contains(p.name, o.only) {
			continue
		}
		dir := filepath.Join(base, fmt.Sprint(i))
		answers, err := p.compare(ctx, o, npm, dir)
		if err != nil {
			answers = slices.Repeat([]string{cut(strings.ReplaceAll(err.Error(), "\n", " "))}, len(o.kernels))
		}
		fmt.Printf("| %s |", p.name)
		for _, a := range answers {
			if a != same {
				failed++
			}
			fmt.Printf(" %s |", a)
		}
		fmt.Println()
		os.RemoveAll(dir)
	}
	if failed > 0 {
		return fmt.Errorf("%d programs did not do what they do on the host", failed)
	}
	return nil
}

// same is the result of a program that printed the same as on the host.
const same = "as on the host"

func (p pack) compare(ctx context.Context, o options, npm, dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte("{\"private\":true}\n"), 0o644); err != nil {
		return nil, err
	}
	install := exec.CommandContext(ctx, npm, append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts",
		"--loglevel=error"}, p.install...)...)
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("npm install: %w: %s", err, out)
	}
	env := map[string]string{}
	var tcp []string
	if p.server != nil {
		port, stop, err := p.server.run(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		env["PORT"] = fmt.Sprint(port)
		tcp = []string{"127.0.0.1:" + env["PORT"]}
	}
	main := "main.js"
	if strings.Contains(p.program, "import *") {
		main = "main.mjs"
	}
	if err := os.WriteFile(filepath.Join(dir, main), []byte(p.program), 0o644); err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, packageLimit)
	defer cancel()
	cmd := exec.CommandContext(timed, o.node, main)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "LANG=C.UTF-8", "PORT=" + env["PORT"]}
	var want, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &want, &errs
	if err := cmd.Run(); err != nil || want.Len() == 0 {
		return nil, fmt.Errorf("on the host: %w: %s", err, why(errs.String(), want.String()))
	}
	var answers []string
	for _, k := range o.kernels {
		res, err := o.rt.Run(ctx, unitask.Request{Code: p.program, Path: "/package/" + main, Dir: "/package", Kernel: k,
			MemoryMB: p.memoryMB, Timeout: packageLimit, Env: env, AllowTCP: tcp,
			Dirs: []unitask.Mount{{Host: filepath.Join(dir, "node_modules"), Guest: "/package/node_modules"}}}, unitask.IO{})
		answers = append(answers, p.judge(res, err, want.Bytes()))
	}
	return answers, nil
}

func (p pack) judge(res *unitask.Result, err error, want []byte) string {
	switch {
	case res == nil:
		return cut(err.Error())
	case res.Outcome != unitask.OutcomeExited || res.ExitCode != 0:
		return fmt.Sprintf("%s %d: %s", res.Outcome, res.ExitCode, why(string(res.Stderr), res.Error))
	case !bytes.Equal(res.Stdout, want):
		return "prints something else"
	}
	return same
}
