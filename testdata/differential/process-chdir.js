process.chdir('/tmp'); console.log(process.cwd(), require('fs').realpathSync('.')); try { process.chdir('/nope'); } catch (e) { console.log(e.code); }
