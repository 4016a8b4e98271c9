package main

import (
	"context"
	"fmt"

	"muster/dispatch"
	"muster/internal/hostaddr"
	"muster/internal/hosts"
)

// machines are those of the job, with the way to reach each. The returned function closes what they share.
func (l *launcher) machines(marker string) ([]dispatch.Machine, func(), error) {
	var all []dispatch.Machine
	names := l.nodeNames()
	for i, n := range l.req.Job.Hosts.Nodes {
		all = append(all, dispatch.Machine{Name: names[i], Start: func(ctx context.Context) (dispatch.Conn, error) {
			if here(ctx, n.Host) {
				return l.startHere(marker, names[i])
			}
			return nil, fmt.Errorf("no ssh yet: %w", errNever)
		}})
	}
	return all, func() {}, nil
}

// here reports whether a host is this machine: then no ssh is needed. Who gives a user or a port means ssh.
func here(ctx context.Context, h hosts.Host) bool {
	if h.User != "" || h.Port != 0 {
		return false
	}
	_, local, err := hostaddr.Ours(ctx, h.Name)
	return err == nil && local
}
