import { sep } from 'path';
console.log('detected', sep, typeof require, await 3);
