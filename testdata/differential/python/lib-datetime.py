from datetime import date, datetime, timedelta, timezone
d = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=2)))
print(d, d.isoformat(), repr(d), d.astimezone(timezone.utc), d + timedelta(days=366), d.strftime('%A %d %B %Y %H:%M:%S.%f %z %j %U'))
print(datetime.strptime('03/04/21 05:06', '%d/%m/%y %H:%M'), date.fromisocalendar(2020, 53, 7), datetime.fromisoformat('2020-01-01T00:00Z'), datetime.fromtimestamp(0), datetime.min)
print(abs(datetime.now(timezone.utc).timestamp() - __import__('time').time()) < 5, datetime.now().year > 2000)
