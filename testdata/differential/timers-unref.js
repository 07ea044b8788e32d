setTimeout(() => console.log('never'), 60000).unref(); const t = setTimeout(() => console.log('ref'), 5); console.log(t.hasRef(), typeof t[Symbol.toPrimitive]()); setTimeout(() => {}, 1).refresh();
