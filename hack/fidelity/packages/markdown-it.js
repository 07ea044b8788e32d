
		const md = require('markdown-it')({ html: true, linkify: true, typographer: true }); const text = '# Title\n\n| a | b |\n|---|---|\n| 1 | "x" |\n\n- https://example.com\n  1. *deep* **b** ~~s~~\n\n```js\ncode\n```\n';
		console.log(md.render(text), md.render(text.repeat(200)).length)