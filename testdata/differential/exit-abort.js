console.log('before abort'); process.abort();
