package main

import (
	"fmt"
	"strings"
	"time"

	"muster/internal/printable"
	"muster/internal/wording"
	"muster/launch/report"
)

// sidecarText is how a process beside the workers stands.
func sidecarText(s *report.Sidecar, now time.Time) string {
	parts := []string{
		fmt.Sprintf("sidecar %d on %s (%s): %s", s.Index, printable.Output(s.Node), printable.Output(s.Command),
			printable.Output(string(s.State))),
	}
	if s.PID != 0 {
		parts = append(parts, fmt.Sprintf("process %d", s.PID))
	}
	if s.StartTime != nil {
		parts = append(parts, "up "+since(s.StartTime, now))
	}
	if s.Port != 0 && s.Healthy != nil {
		takes := "takes connections"
		if !*s.Healthy {
			takes = "takes no connections"
		}
		parts = append(parts, fmt.Sprintf("port %d %s", s.Port, takes))
	}
	parts = append(parts, wording.Plural(s.Restarts, "restart"))
	if s.LastExit != nil {
		parts = append(parts, "last exit "+exitText(s.LastExit, now))
	}
	if s.Problem != "" {
		parts = append(parts, printable.Output(s.Problem))
	}
	return strings.Join(parts, ", ")
}
