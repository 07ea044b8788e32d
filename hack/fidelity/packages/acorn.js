
		const acorn = require('acorn'), walk = require('acorn-walk'), fs = require('fs'); const kinds = {};
		walk.full(acorn.parse(fs.readFileSync(require.resolve('acorn'), 'utf8'), { ecmaVersion: 2022 }), (n) => { kinds[n.type] = (kinds[n.type] ?? 0) + 1 }); console.log(kinds)