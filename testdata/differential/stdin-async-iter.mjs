let n = 0; for await (const c of process.stdin) n += c.length; console.log(n); console.log(process.stdin.readable, process.stdin.fd);
