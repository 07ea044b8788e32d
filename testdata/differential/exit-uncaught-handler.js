process.on('uncaughtException', (e, o) => { console.log('caught', e.message, o); }); setTimeout(() => console.log('goes on'), 5); throw new Error('x');
