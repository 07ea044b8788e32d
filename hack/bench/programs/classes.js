class Shape { static count = 0; #id = ++Shape.count; get id() { return this.#id; } area() { throw new Error('abstract'); } *[Symbol.iterator]() { yield this.id; yield this.area(); } }
class Circle extends Shape { constructor(r) { super(); this.r = r; } area() { return Math.PI * this.r ** 2; } }
class Square extends Shape { constructor(a) { super(); this.a = a; } area() { return this.a ** 2; } toString() { return `Square(${this.a})`; } }
function* primes() { const seen = []; for (let n = 2; ; n++) if (seen.every((p) => n % p)) { seen.push(n); yield n; } }
const shapes = [new Circle(1), new Square(2)];
console.log(shapes.map(([id, area]) => `${id}:${area.toFixed(2)}`), String(shapes[1]), primes().drop(100).take(3).toArray());
