const tls = require('tls'), c = require('crypto'); console.log(tls.DEFAULT_MIN_VERSION, tls.DEFAULT_MAX_VERSION, tls.getCiphers().length, tls.rootCertificates.length, c.getFips());
