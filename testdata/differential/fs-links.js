const fs = require('fs'), path = require('path'); const d = fs.mkdtempSync(path.join(require('os').tmpdir(), 'l-')); process.chdir(d);
fs.writeFileSync('t', 'x'); fs.symlinkSync('t', 's'); console.log(fs.readlinkSync('s'), fs.lstatSync('s').isSymbolicLink(), fs.realpathSync('s') === path.join(fs.realpathSync(d), 't'));
fs.symlinkSync('nowhere', 'broken'); console.log(fs.existsSync('broken')); try { fs.symlinkSync('t', 's'); } catch (e) { console.log(e.code); }
