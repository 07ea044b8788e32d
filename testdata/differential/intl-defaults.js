// The default locale and time zone, and what is remembered of them.
console.log(Intl.DateTimeFormat().resolvedOptions().locale, new Intl.NumberFormat().format(1234.5));
process.env.TZ = 'Asia/Tokyo';
console.log(new Date(0).toString(), Intl.DateTimeFormat().resolvedOptions().timeZone);
process.env.TZ = 'Europe/Berlin';
console.log(new Date(0).toLocaleString(), new Date(0).toLocaleString('de-DE'));
