const c = new AbortController(); c.signal.addEventListener('abort', () => console.log('aborted', c.signal.reason)); setTimeout(() => c.abort(new Error('why')), 2);
await new Promise((r) => setTimeout(r, 10)); try { c.signal.throwIfAborted(); } catch (e) { console.log(e.message); } const t = AbortSignal.timeout(5), alive = setTimeout(() => {}, 1e6); // its own timer keeps nothing alive
await new Promise((r) => t.addEventListener('abort', r)); clearTimeout(alive); console.log(t.reason.name, AbortSignal.any([t]).aborted);
await (await import('timers/promises')).setTimeout(1000, null, { signal: AbortSignal.abort() }).catch((e) => console.log(e.name, e.code));
