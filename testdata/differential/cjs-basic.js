console.log(require.main === module, __filename === process.argv[1], __dirname === require('path').dirname(process.argv[1]), module.id, module.loaded, module.children.length, module.parent);
console.log(typeof exports, this === exports, Object.keys(require.cache).length, require.resolve('fs'), module.paths.length > 0, typeof require.extensions['.js']);
console.log(Object.keys(module), arguments.length, process.mainModule === module);
