// Starts a program of a package in /node_modules as npx does: the named program, or the package's own.
const fs = require('node:fs'), path = require('node:path')
const [pkg, named, ...args] = process.argv.slice(1)
const fail = text => { process.stderr.write(`unitask: ${text}\n`); process.exit(127) }
const own = () => {
  let info
  try {
    info = JSON.parse(fs.readFileSync(`/node_modules/${pkg}/package.json`))
  } catch (e) {
    fail(`the package ${pkg} is not in this machine: ${e.message}`)
  }
  const bin = typeof info.bin === 'string' ? { [path.basename(pkg)]: info.bin } : info.bin ?? {}
  const names = Object.keys(bin)
  if (names.includes(path.basename(pkg))) return path.basename(pkg)
  if (new Set(Object.values(bin)).size === 1) return names[0]
  fail(`${pkg} has ${names.length ? 'the programs ' + names.join(', ') : 'no program'}: npx -p ${pkg} PROGRAM names one`)
}
const file = `/node_modules/.bin/${named || own()}`
let head = ''
try {
  const fd = fs.openSync(file), b = Buffer.alloc(128)
  head = b.toString('latin1', 0, fs.readSync(fd, b)).split('\n')[0]
  fs.closeSync(fd)
} catch (e) {
  fail(`no package has the program ${named || own()}: ${e.message}`)
}
if (/\.[cm]?js$/.test(fs.realpathSync(file)) || /^#!.*\bnode\b/.test(head)) {
  process.argv = [process.execPath, file, ...args]
  process.execArgv = []
  require('node:module').runMain(file)
} else {
  const child = require('node:child_process').spawn(file, args, { stdio: 'inherit' })
  child.on('error', e => fail(e.message))
  child.on('exit', (code, signal) => signal ? process.kill(process.pid, signal) : process.exit(code))
}
