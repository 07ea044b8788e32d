const os: typeof import('os') = require('os'); console.log(typeof os.arch(), typeof module);
