import os, time
from datetime import datetime, timezone
from zoneinfo import ZoneInfo, available_timezones
d = datetime(2024, 7, 1, 12, tzinfo=timezone.utc)
for z in ('Europe/Berlin', 'America/New_York', 'Asia/Kolkata', 'Australia/Lord_Howe'):
    print(d.astimezone(ZoneInfo(z)))
print(len(available_timezones()) > 400, time.tzname, time.timezone, time.daylight)
os.environ['TZ'] = 'Asia/Tokyo'; time.tzset(); print(time.tzname, time.strftime('%H:%M %Z', time.localtime(0)))
ZoneInfo('No/Where')
