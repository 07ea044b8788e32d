const rows = Array.from({ length: 65000 }, (_, i) => ({ id: i, name: `user ${i}`, tags: ['a', 'b'], score: i * 1.5, active: i % 2 === 0 }));
const text = JSON.stringify(rows);
const back = JSON.parse(text);
console.log(text.length, back.filter((r) => r.active).reduce((s, r) => s + r.score, 0));
