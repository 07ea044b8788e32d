process.exitCode = 9; process.on('exit', (c) => console.log('exit', c, process.exitCode));
