# envs: TZ=America/New_York
# envs: TZ=UTC
import time
import datetime

print(time.tzname, time.timezone, time.altzone, time.daylight)
print(time.strftime("%Y %H %Z", time.localtime(1700000000)), datetime.datetime.fromtimestamp(1700000000))
