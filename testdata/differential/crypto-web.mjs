const { subtle } = globalThis.crypto; console.log(Buffer.from(await subtle.digest('SHA-256', new TextEncoder().encode('x'))).toString('hex'));
const k = await subtle.importKey('raw', new Uint8Array(16), 'AES-CBC', false, ['encrypt']); console.log(Buffer.from(await subtle.encrypt({ name: 'AES-CBC', iv: new Uint8Array(16) }, k, new Uint8Array(5))).toString('hex'), k);
const { privateKey, publicKey } = await subtle.generateKey({ name: 'ECDSA', namedCurve: 'P-256' }, true, ['sign', 'verify']);
const s = await subtle.sign({ name: 'ECDSA', hash: 'SHA-256' }, privateKey, new Uint8Array(3)); console.log(await subtle.verify({ name: 'ECDSA', hash: 'SHA-256' }, publicKey, s, new Uint8Array(3)));
