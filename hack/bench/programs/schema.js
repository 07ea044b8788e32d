const { object, string, number, array } = require('/data/schema.js');
const user = object({ name: string(), age: number(), tags: array(string()) });
console.log(user.parse({ name: 'a', age: 3, tags: ['x'] }));
try { user.parse({ name: 'a', age: 'old', tags: [1] }); } catch (e) { console.log(e.message); }
