const response = await fetch(process.env.HTTP + '/items');
if (!response.ok) throw new Error(`HTTP ${response.status}`);
const items = await response.json();
console.log(items.length, items.map((i) => i.name).join(', '));
