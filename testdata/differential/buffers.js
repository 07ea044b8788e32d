const b = Buffer.from('héllo wörld €'); console.log(b, b.toString('hex'), b.toString('base64'), b.toString('base64url'), b.toString('latin1'), b.length, b.readUInt32BE(0), b.indexOf('w'));
console.log(Buffer.concat([Buffer.alloc(2, 7), Buffer.from([256, -1])]), Buffer.compare(Buffer.from('a'), Buffer.from('b')), b.subarray(1, 4).equals(b.slice(1, 4)), Buffer.from('ff0g', 'hex'));
console.log(new TextDecoder().decode(new Uint8Array([0xff, 0x41])), structuredClone({ m: new Map([[1, new Date(0)]]) }), atob('aGk='), btoa('hi'), b.swap16 && Buffer.from([1, 2]).swap16());
try { Buffer.alloc(2).readUInt32LE(0); } catch (e) { console.log(e.code, e.message); } try { Buffer.from(5); } catch (e) { console.log(e.code); }
