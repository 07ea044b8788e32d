console.log(typeof require, typeof module, this === module.exports); import('path').then((m) => console.log(m.default.sep));
