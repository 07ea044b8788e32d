interface Item { name: string; price: number; tags?: string[] }
type Total = { count: number; sum: number };
const items: Item[] = [{ name: 'pen', price: 1.5 }, { name: 'book', price: 12, tags: ['paper'] }];
function total(list: readonly Item[]): Total {
  return list.reduce<Total>((t, i) => ({ count: t.count + 1, sum: t.sum + i.price }), { count: 0, sum: 0 });
}
console.log(total(items), items.filter((i): i is Required<Item> => !!i.tags).map((i) => i.name) satisfies string[]);
