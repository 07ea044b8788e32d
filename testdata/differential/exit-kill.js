console.log('before kill'); process.kill(process.pid, 'SIGKILL'); for (;;);
