const fs = require('fs'); process.chdir(fs.mkdtempSync(require('path').join(require('os').tmpdir(), 'm-'))); fs.writeFileSync('t', 'x', { mode: 0o640 }); console.log((fs.statSync('t').mode & 0o777).toString(8));
fs.chmodSync('t', 0o600); console.log((fs.statSync('t').mode & 0o777).toString(8)); fs.linkSync('t', 'h'); console.log(fs.statSync('t').nlink); fs.accessSync('t', fs.constants.R_OK);
