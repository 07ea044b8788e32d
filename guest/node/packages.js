// Installs packages in a separate machine, because their install scripts are untrusted code.
// plan.json in the same folder lists them; /out receives the files and a lock. Without a tool in
// the plan, the image's own npm installs them, and the lock is printed.
'use strict'
const fs = require('node:fs')
const path = require('node:path')
const { spawnSync } = require('node:child_process')

const plan = JSON.parse(fs.readFileSync(path.join(__dirname, 'plan.json'), 'utf8'))
const build = '/tmp/build', npm = '/tmp/npm'
const run = (command, args, options) => {
  const { status, error } = spawnSync(command, args, { stdio: ['ignore', 'ignore', 'inherit'], ...options })
  if (error || status !== 0) {
    if (error) console.error(`npm error ${error.message}`)
    process.exit(1)
  }
}
for (const folder of [build, npm]) fs.mkdirSync(folder)
if (plan.tool) run('tar', ['xzf', plan.tool, '-C', npm])
if (!plan.tool && fs.existsSync(plan.place)) {
  console.error(`npm error the image has a ${plan.place} of its own`)
  process.exit(1)
}

const config = [`registry=${plan.url}`, 'fetch-retries=1', 'fetch-retry-mintimeout=500', 'fetch-retry-maxtimeout=2000', 'fetch-timeout=15000',
  'audit=false', 'fund=false', 'update-notifier=false', 'loglevel=error', 'progress=false', 'omit-lockfile-registry-resolved=true', 'cache=/tmp/cache', 'logs-max=0']
for (const [scope, url] of Object.entries(plan.scopes ?? {})) config.push(`${scope}:registry=${url}`)
const ca = path.join(__dirname, 'ca.pem')
if (plan.ca) config.push(`cafile=${ca}`)
fs.writeFileSync('/tmp/npmrc', config.join('\n') + '\n')
fs.writeFileSync('/tmp/globalrc', '')
const env = { ...process.env, npm_config_userconfig: '/tmp/npmrc', npm_config_globalconfig: '/tmp/globalrc', PATH: `${path.dirname(process.execPath)}:${process.env.PATH}` }
// node-gyp uses the headers that came with the compilers, and downloads none.
if (fs.existsSync('/usr/include/node/node_version.h')) env.npm_config_nodedir = '/usr'
// Programs that install scripts start read their own variables, not npm's settings.
if (plan.ca) for (const name of plan.authorities) env[name] = ca

const manifest = { name: 'unitask', version: '1.0.0', private: true }
const args = ['install', ...plan.specs]
if (plan.npm) {
  manifest.dependencies = plan.npm.packages[''].dependencies
  fs.writeFileSync(path.join(build, 'package-lock.json'), JSON.stringify(plan.npm))
  args.splice(0, args.length, 'ci')
}
fs.writeFileSync(path.join(build, 'package.json'), JSON.stringify(manifest))
if (plan.tool) run(process.execPath, [path.join(npm, 'package/bin/npm-cli.js'), ...args], { cwd: build, env })
else run('npm', args, { cwd: build, env })

const lock = JSON.parse(fs.readFileSync(path.join(build, 'package-lock.json'), 'utf8'))
const packages = []
for (const [place, p] of Object.entries(lock.packages)) {
  const name = p.name ?? place.slice(place.lastIndexOf('node_modules/') + 'node_modules/'.length)
  if (place && fs.existsSync(path.join(build, place))) packages.push({ name, version: p.version ?? '', digest: p.integrity ?? '' })
}
if (!plan.tool) {
  fs.renameSync(path.join(build, 'node_modules'), plan.place)
  console.log('unitask: lock ' + JSON.stringify({ packages, npm: lock }))
  process.exit()
}
fs.writeFileSync('/out/lock.json', JSON.stringify({ packages, npm: lock }))
run('tar', ['cf', '/out/packages.tar', '-C', path.join(build, 'node_modules'), '.'])
