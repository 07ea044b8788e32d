
		const { z } = require('zod'); const User = z.object({ name: z.string().min(2), age: z.number().int().positive(), tags: z.array(z.enum(['a', 'b'])).default([]) });
		console.log(User.parse({ name: 'Ada', age: 36 }), User.safeParse({ name: 'A', age: -1, tags: ['c'] }).error.issues.map((i) => i.path.join('.') + ' ' + i.code))