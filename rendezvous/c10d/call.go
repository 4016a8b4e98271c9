package c10d

import (
	"fmt"
	"time"

	"muster/internal/pickle"
)

// callZone is datetime.timezone(timedelta).
func callZone(args pickle.Tuple) (any, error) {
	if len(args) == 1 {
		if d, ok := args[0].(pyDelta); ok {
			if d := time.Duration(d); d <= -24*time.Hour || d >= 24*time.Hour {
				return nil, fmt.Errorf("time zone is %v from UTC, limit is a day", d)
			}
			return pyZone(d), nil
		}
	}
	return nil, fmt.Errorf("cannot make a timezone of %s", pickle.Describe(args))
}

// callDelta is datetime.timedelta(days, seconds, microseconds).
func callDelta(args pickle.Tuple) (any, error) {
	if len(args) == 3 {
		days, ok1 := args[0].(int64)
		seconds, ok2 := args[1].(int64)
		micros, ok3 := args[2].(int64)
		const most = 1e6 // days, so that the sum fits into a Duration
		if ok1 && ok2 && ok3 && days > -most/100 && days < most/100 && seconds >= 0 && seconds < 86400 && micros >= 0 && micros < 1e6 {
			return pyDelta(time.Duration(days)*24*time.Hour + time.Duration(seconds)*time.Second +
				time.Duration(micros)*time.Microsecond), nil
		}
	}
	return nil, fmt.Errorf("cannot make a timedelta of %s", pickle.Describe(args))
}

// callTime is datetime.datetime(ten bytes[, zone]): year (two bytes, the higher first), month, day, hour, minute,
// second, microsecond (three bytes). The month's highest bit is "fold", which says nothing in UTC.
func callTime(args pickle.Tuple) (any, error) {
	if len(args) < 1 || len(args) > 2 {
		return nil, fmt.Errorf("cannot make a datetime of %s", pickle.Describe(args))
	}
	b, ok := args[0].([]byte)
	if !ok || len(b) != 10 {
		return nil, fmt.Errorf("datetime holds %s, want ten bytes", pickle.Describe(args[0]))
	}
	naive := len(args) == 1 || args[1] == nil
	zone := pyZone(0)
	if !naive {
		if zone, ok = args[1].(pyZone); !ok {
			return nil, fmt.Errorf("datetime has %s, want a timezone", pickle.Describe(args[1]))
		}
	}
	year, month, day := int(b[0])<<8|int(b[1]), time.Month(b[2]&0x7f), int(b[3])
	micro := int(b[7])<<16 | int(b[8])<<8 | int(b[9])
	t := time.Date(year, month, day, int(b[4]), int(b[5]), int(b[6]), micro*1000, time.UTC)
	// Date accepts any number and carries it over: what does not come back was not a date.
	if year < 1 || year > 9999 || t.Year() != year || t.Month() != month || t.Day() != day || t.Hour() != int(b[4]) ||
		t.Minute() != int(b[5]) || t.Second() != int(b[6]) || micro >= 1e6 {
		return nil, fmt.Errorf("datetime % x does not exist", b)
	}
	t = t.Add(-time.Duration(zone))
	if t.Year() < 1 || t.Year() > 9999 {
		return nil, fmt.Errorf("datetime % x is outside the years 1 to 9999 in UTC", b)
	}
	return pyTime{t, naive}, nil
}
