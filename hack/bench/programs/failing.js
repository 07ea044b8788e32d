const config = JSON.parse('{"retries": 3}');
function load(name) { return config[name].value.trim(); }
function main() { console.log('starting'); return ['retries', 'missing'].map(load); }
main();
