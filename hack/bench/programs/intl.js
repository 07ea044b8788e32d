const date = new Date(Date.UTC(2024, 1, 29, 12));
console.log(new Intl.DateTimeFormat('en-GB', { dateStyle: 'full', timeZone: 'Europe/Berlin' }).format(date));
console.log(date.toLocaleString('en-US', { timeZone: 'America/New_York' }), (1234567.891).toLocaleString('de-DE'));
console.log(new Intl.NumberFormat('en', { style: 'currency', currency: 'EUR' }).format(12.5), ['ä', 'z', 'a'].sort(new Intl.Collator('de').compare).join());
