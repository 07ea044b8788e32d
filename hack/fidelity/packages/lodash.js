
		const _ = require('lodash'); const rows = _.range(5000).map((i) => ({ id: i, g: i % 7, v: (i * 7919) % 1000 }));
		console.log(_(rows).groupBy('g').mapValues((r) => _.sumBy(r, 'v')).value(), _.isEqual(_.cloneDeep(rows), rows), _.template('<%= a %>!')({ a: 'x' }), _.debounce.length)