import fs, { readFileSync } from 'node:fs';
import * as path from 'path';
console.log(typeof fs.readFileSync === typeof readFileSync, path.basename(import.meta.url), import.meta.filename === process.argv[1], typeof require, typeof module, this);
console.log(import.meta.dirname === path.dirname(process.argv[1]), typeof import.meta.resolve, import.meta.main);
export default 1;
