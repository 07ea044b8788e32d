try { process.exit('abc'); } catch (e) { console.log(e.code); } process.exitCode = undefined; process.exit();
