package web

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"muster/launch/report"
)

// The cells of a row, in this order; page.js has the same list. What is not known is null.
//
//	rank, number of the node, local rank, pid, phase, restarts, start in ms, CPUs in use, bytes, last output in ms,
//	step, total steps, seconds of a step, section, time of the last word in ms, values, bytes of accelerators in use and
//	in all, share of time in which they compute, last exit

// appendRow appends the cells of a rank.
func appendRow(b []byte, r *report.Rank, node int, used usedCPU) []byte {
	b = appendInt(b, int64(r.Rank))
	b = appendInt(append(b, ','), int64(node))
	b = appendInt(append(b, ','), int64(r.LocalRank))
	b = appendInt(append(b, ','), int64(r.PID))
	b = appendText(append(b, ','), string(r.Phase))
	b = appendInt(append(b, ','), int64(r.Restarts))
	b = appendTime(append(b, ','), r.StartTime)
	if b = append(b, ','); used.known {
		b = appendNumber(b, math.Round(used.rate*100)/100)
	} else {
		b = append(b, "null"...)
	}
	if b = append(b, ','); r.ResidentBytes != nil {
		b = appendInt(b, *r.ResidentBytes)
	} else {
		b = append(b, "null"...)
	}
	b = appendTime(append(b, ','), r.LastOutput)
	if p := r.Progress; p == nil {
		b = append(b, ",null,null,null,null,null,null"...)
	} else {
		b = appendInt(append(b, ','), p.Step)
		b = appendInt(append(b, ','), p.Total)
		if b = append(b, ','); p.StepSeconds != nil {
			b = appendNumber(b, *p.StepSeconds)
		} else {
			b = append(b, "null"...)
		}
		b = appendText(append(b, ','), p.Section)
		b = appendTime(append(b, ','), &p.Time)
		b = appendValues(append(b, ','), p.Values)
	}
	b = appendDevices(append(b, ','), r)
	if b = append(b, ','); r.LastExit == nil {
		return append(b, "null"...)
	}
	exit, err := json.Marshal(r.LastExit)
	if err != nil { // texts and numbers
		return append(b, "null"...)
	}
	return append(b, exit...)
}

// appendDevices appends what is known of a rank's accelerators.
func appendDevices(b []byte, r *report.Rank) []byte {
	if used, total, known := r.DeviceMemory(); known {
		b = appendInt(append(appendInt(b, used), ','), total)
	} else {
		b = append(b, "null,null"...)
	}
	if share, known := r.DeviceBusy(); known {
		return appendNumber(append(b, ','), share)
	}
	return append(b, ",null"...)
}

// mostValues is how many of a worker's values are shown.
const mostValues = 16

func appendValues(b []byte, values map[string]float64) []byte {
	b = append(b, '{')
	for i, name := range slices.Sorted(maps.Keys(values)) {
		if i == mostValues {
			break
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendNumber(append(appendText(b, name), ':'), values[name])
	}
	return append(b, '}')
}

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

// appendNumber appends a number, null for one that JSON does not have.
func appendNumber(b []byte, n float64) []byte {
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, n, 'g', 6, 64)
}

func appendTime(b []byte, t *time.Time) []byte {
	if t == nil || t.IsZero() {
		return append(b, "null"...)
	}
	return appendInt(b, t.UnixMilli())
}

func appendText(b []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		plain = plain && s[i] >= ' ' && s[i] < 0x7f && s[i] != '"' && s[i] != '\\'
	}
	if plain {
		return append(append(append(b, '"'), s...), '"')
	}
	text, err := json.Marshal(s)
	if err != nil { // it has none
		return append(b, `""`...)
	}
	return append(b, text...)
}
