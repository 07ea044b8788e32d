console.log(typeof gc, require('v8').deserialize(require('v8').serialize({ a: new Map([[1, 2n]]) })), new WeakRef({}).deref() !== undefined); new FinalizationRegistry(() => {}).register({}, 1);
