const fs = require('node:fs'), os = require('node:os');
const code = (f) => { try { return f() } catch (e) { return e.code } };
for (const p of ['/proc/self/status', '/proc/self/stat', '/proc/self/statm', '/proc/self/cmdline', '/proc/self/cgroup', '/proc/version', '/proc/uptime', '/proc/loadavg', '/proc/stat', '/proc/cpuinfo', '/proc/sys/kernel/hostname', '/etc/os-release']) console.log(p, code(() => fs.readFileSync(p, 'utf8').length > 0), code(() => fs.statSync(p).isFile()));
const b = Buffer.alloc(10, 1), zero = fs.openSync('/dev/zero', 'r+'); console.log(fs.readSync(zero, b), b.every((x) => x === 0), fs.writeSync(zero, 'x'), fs.statSync('/dev/zero').isCharacterDevice(), fs.fstatSync(fs.openSync('/dev/random', 'r')).isCharacterDevice());
console.log(fs.statSync('/dev/stdin').isFIFO(), fs.readFileSync('/dev/stdin', 'utf8'), fs.readlinkSync('/dev/fd'), fs.existsSync('/dev/fd/1'), code(() => fs.openSync('/dev/fd/77')));
fs.appendFileSync('/dev/stdout', 'to stdout\n'); fs.appendFileSync('/dev/fd/1', 'to fd\n'); fs.appendFileSync('/dev/stderr', 'to stderr\n'); fs.appendFileSync('/proc/self/fd/1', 'to proc\n');
const was = process.memoryUsage().rss, big = Buffer.alloc(60e6, 1); console.log(process.memoryUsage().rss - was > 50e6, big.length, process.availableMemory() > 1e7, process.resourceUsage().maxRSS > 10000, os.freemem() > 1e6);
const busy = Date.now(); while (Date.now() - busy < 300); const [cpu] = os.cpus(); console.log(cpu.times.user > 0, process.getgroups().includes(process.getgid()));
