console.log(process.argv.slice(2), process.env.FOO, 'UNITASK' in process.env, Object.keys(process.env).filter((k) => k.startsWith('NODE')));
