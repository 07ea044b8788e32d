console.log('hello from', process.platform, process.arch);
