console.log('does not read');
