const v = await Promise.resolve(5); console.log(v);
const { default: os } = await import('os'); console.log(os.EOL === '\n');
await new Promise((r) => setTimeout(r, 5)); console.log('after');
