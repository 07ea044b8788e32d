let x = 42;
const next = () => (x = (x * 1103515245 + 12345) % 2147483648);
const a = Array.from({ length: 100000 }, next);
const s = [...a].sort((p, q) => p - q);
console.log(s[0], s[50000], s.at(-1), new Set(a).size, Math.max(...a.slice(0, 1000)));
