const { execSync, spawn } = require('node:child_process');
console.log(execSync('echo hello; exit 0').toString().trim());
const child = spawn('/bin/sh', ['-c', 'read x; echo "got $x"; exit 3']);
child.stdout.on('data', (d) => process.stdout.write(d));
child.on('close', (code) => console.log('exit', code));
child.stdin.end('input\n');
