const items = [{ name: 'pen', price: 1.5 }, { name: 'book', price: 12, tags: ['paper'] }];
function total(list) {
  return list.reduce((t, i) => ({ count: t.count + 1, sum: t.sum + i.price }), { count: 0, sum: 0 });
}
console.log(total(items), items.filter((i) => !!i.tags).map((i) => i.name));
