// The throw-away script: touches what nearly every script touches.
console.log('warm');
