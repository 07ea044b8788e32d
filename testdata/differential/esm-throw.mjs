console.log('one'); await null; throw new TypeError('from a module');
