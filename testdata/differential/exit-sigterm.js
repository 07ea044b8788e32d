console.log('before term'); process.kill(process.pid, 'SIGTERM'); setTimeout(() => console.log('never'), 5000);
