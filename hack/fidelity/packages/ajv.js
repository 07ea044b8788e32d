
		const Ajv = require('ajv'); const ajv = new Ajv({ allErrors: true }); const validate = ajv.compile({ type: 'object', properties: { n: { type: 'integer', minimum: 3 }, s: { type: 'string', pattern: '^x+$' } }, required: ['n'], additionalProperties: false });
		console.log(validate({ n: 3, s: 'xx' }), validate({ n: 1, s: 'y', z: 1 }), validate.errors.map((e) => e.instancePath + ' ' + e.message))