console.log('never printed');
const = 5;
