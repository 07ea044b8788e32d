
		const { parse } = require('csv-parse'), { stringify } = require('csv-stringify/sync'), fs = require('fs');
		fs.writeFileSync('/tmp/in.csv', stringify(Array.from({ length: 20000 }, (_, i) => [i, 'a "quoted" value, ' + i, 'line\nbreak']), { header: true, columns: ['id', 'text', 'more'] }));
		let n = 0, sum = 0; fs.createReadStream('/tmp/in.csv').pipe(parse({ columns: true })).on('data', (r) => { n++; sum += +r.id + r.text.length }).on('end', () => console.log(n, sum))