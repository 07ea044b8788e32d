console.log('before'); await new Promise(() => {}); console.log('never');
