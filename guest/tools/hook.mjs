// Makes unitask:tools known to a process of Node (--import).
import { registerHooks } from 'node:module';

registerHooks({
  resolve(name, context, next) {
    if (name !== 'unitask:tools') return next(name, context);
    return { url: 'file:///unitask/tools/index.mjs', format: 'module', shortCircuit: true };
  },
});
