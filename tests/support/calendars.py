"""The spans of calendars that start anywhere, by Python's own time zones: one for each line of a file.

Each line is the time zone, the unit, where its spans start, and a time in Unix seconds. Each answer is a line too:
the start and the end of the span that holds this time, in Unix seconds. All starts near the time are computed, and
the nearest ones chosen: nothing is assumed about how days follow each other.
"""

import calendar
import functools
import sys
from bisect import bisect_right
from datetime import date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

DAY = 86400
EPOCH = datetime(1970, 1, 1)
WEEKDAYS = [name.lower() for name in calendar.day_name]


@functools.cache
def offsets(name):
    """The times from which a zone has an offset, and these offsets, in seconds."""
    zone = ZoneInfo(name)

    def offset(at):
        return int(datetime.fromtimestamp(at, timezone.utc).astimezone(zone).utcoffset().total_seconds())

    changes = [(-DAY, offset(-DAY))]
    for day in range(0, 60 * 366 * DAY, DAY // 2):
        if offset(day) == changes[-1][1]:
            continue
        same, other = day - DAY // 2, day
        while other - same > 1:
            middle = (same + other) // 2
            same, other = (middle, other) if offset(middle) == changes[-1][1] else (same, middle)
        changes.append((other, offset(other)))
    return [at for at, _ in changes], [offset for _, offset in changes]


def first_instant(zone, local):
    """The first time at which the clocks show `local` or later."""
    wanted = int((local - EPOCH).total_seconds())
    begins, shown = offsets(zone)
    near = bisect_right(begins, wanted)
    for index in range(max(0, near - 3), len(begins)):
        at = max(begins[index], wanted - shown[index])
        if index + 1 == len(begins) or at < begins[index + 1]:
            return at


def of_month(year, month, day):
    return date(year, month, min(day, calendar.monthrange(year, month)[1]))


def near_days(unit, starts, now):
    """Days on which spans start, and their time; some are before `now`, some after."""
    today = (EPOCH + timedelta(seconds=now)).date()
    around = [today + timedelta(days=day) for day in range(-9, 10)]
    if unit == "day":
        return around, time.fromisoformat(starts)
    if unit == "week":
        return [day for day in around if day.weekday() == WEEKDAYS.index(starts)], time()
    years = range(today.year - 1, today.year + 3)
    if unit == "month":
        return [of_month(year, month, int(starts)) for year in years for month in range(1, 13)], time()
    month, day = map(int, starts.split("-"))
    return [of_month(year, month, day) for year in years], time()


for line in open(sys.argv[1]):
    zone, unit, starts, now = line.split()
    days, clock = near_days(unit, starts, int(now))
    instants = [first_instant(zone, datetime.combine(day, clock)) for day in days]
    print(max(at for at in instants if at <= int(now)), min(at for at in instants if at > int(now)))
