throw { custom: true, n: 1 };
