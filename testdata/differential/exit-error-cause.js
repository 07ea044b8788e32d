throw new Error('outer', { cause: new TypeError('inner', { cause: 'root' }) });
