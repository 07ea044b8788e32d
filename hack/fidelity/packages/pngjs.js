
		const { PNG } = require('pngjs'), crypto = require('crypto'); const png = new PNG({ width: 300, height: 200 });
		for (let i = 0; i < png.data.length; i++) png.data[i] = (i * 31) & 255; const buf = PNG.sync.write(png), back = PNG.sync.read(buf);
		console.log(buf.length, back.width, back.height, crypto.createHash('sha256').update(back.data).digest('hex'))