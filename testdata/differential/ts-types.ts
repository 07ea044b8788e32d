interface P { name: string; age?: number }
type Id<T> = { [K in keyof T]: T[K] };
const p: Id<P> = { name: 'n' };
function f<T extends object>(x: T, y = 1 as const): string { return JSON.stringify(x) + y; }
console.log(f(p), (p satisfies P).name!, undefined as any);
abstract class A { private readonly x: number = 1; protected abstract g(): void; } class B extends A { g(): void {} } console.log(new B());
