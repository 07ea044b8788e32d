// Reads and writes at the end of WebAssembly's memory and far beyond it.
const b = Buffer.from('0061736d01000000010b0260017f017f60027f7f00030302000105030100010709020' + '16c00000173' + '00010a1302070020002d00000b0900200020013a00000b', 'hex');
WebAssembly.instantiate(b).then(({ instance: { exports: { l, s } } }) => {
  for (const at of [0, 65535, 65536, 65537, 1e6, 2 ** 31, 2 ** 32 - 1]) {
    for (const [what, f] of [['load', () => l(at)], ['store', () => s(at, 1)]]) {
      try {
        console.log(what, at, f());
      } catch (e) {
        console.log(what, at, e.name, e.message);
      }
    }
  }
});
