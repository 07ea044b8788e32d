const a = process.hrtime.bigint(), b = performance.now(); const t = Date.now(); while (Date.now() - t < 20); const d = Number(process.hrtime.bigint() - a) / 1e6;
console.log(d >= 19 && d < 2000, performance.now() - b >= 19, process.hrtime()[0] >= 0, process.uptime() < 1000, Math.abs(performance.timeOrigin + performance.now() - Date.now()) < 60000);
