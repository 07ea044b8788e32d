const b = Buffer.alloc(64);
b.writeUInt32BE(0xdeadbeef, 0); b.writeDoubleLE(Math.PI, 8); b.write('héllo', 20);
const view = new DataView(b.buffer, b.byteOffset, b.length);
console.log(b.subarray(0, 16).toString('hex'), view.getFloat64(8, true), b.toString('utf8', 20, 26), Buffer.concat([b, b]).length, Buffer.from('aGk=', 'base64').toString(), b.indexOf('llo'));
