const fs = require('fs'), path = require('path');
fs.writeFileSync(path.join(__dirname, 'data.json'), '{"a":[1,2]}'); fs.writeFileSync(path.join(__dirname, 'lib.js'), 'exports.x = require("./data.json").a; exports.f = __filename.split("/").pop();');
console.log(require('./lib'), require('./lib') === require('./lib.js'), Object.keys(require.cache).map((k) => path.basename(k)));
fs.writeFileSync(path.join(__dirname, 'm.mjs'), 'export const q = 7; export default { d: 1 };'); console.log(require('./m.mjs'));
import('./m.mjs').then((m) => console.log(m.q, m));
