for (let i = 0; i < 50; i++) { console.log('o' + i); console.error('e' + i); }
