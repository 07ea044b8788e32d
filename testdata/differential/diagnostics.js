const dc = require('diagnostics_channel'); dc.subscribe('c', (m, n) => console.log(n, m)); dc.channel('c').publish({ x: 1 }); console.trace('trace here');
