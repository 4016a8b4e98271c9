package main

import (
	"context"
	"slices"
	"sync/atomic"

	"muster/internal/hostaddr"
	hostlist "muster/internal/hosts"
	"muster/launch/hosts"
	"muster/sshexec"
)

// machines are those of the job, with the way to reach each. The returned function closes what they share.
func (l *launcher) machines(marker string) ([]hosts.Machine, func(), error) {
	dialer, err := l.dialer(marker)
	if err != nil {
		return nil, nil, err
	}
	names := l.nodeNames()
	all := make([]hosts.Machine, len(names))
	l.away = make([]atomic.Bool, len(names))
	for i, n := range l.req.Job.Hosts.Nodes {
		all[i] = hosts.Machine{Name: names[i], Start: func(ctx context.Context) (hosts.Conn, error) {
			if here(ctx, n.Host) {
				return l.startHere(marker, names[i])
			}
			l.away[i].Store(true)
			return dialer.Start(ctx, n.Host, []string{agentName})
		}}
	}
	return all, func() { _ = dialer.Close() }, nil
}

// dialer reaches machines by ssh.
func (l *launcher) dialer(marker string) (*sshexec.Dialer, error) {
	rules := &l.req.Job.Hosts.SSH
	return sshexec.New(sshexec.Config{
		Program: rules.Program, User: rules.User, Port: rules.Port, Identity: rules.Identity, HostKeys: rules.HostKeys, Options: rules.Options,
		Home: l.getenv("HOME"), Env: l.lookupEnv, Environ: append(slices.Clip(l.environ), marker), Tree: l.tree,
		Binary: "/proc/self/exe", Version: "muster version " + l.version, Log: l.log,
	})
}

// here reports whether a host is this machine: then no ssh is needed. Who gives a user or a port means ssh.
func here(ctx context.Context, h hostlist.Host) bool {
	if h.User != "" || h.Port != 0 {
		return false
	}
	_, local, err := hostaddr.Ours(ctx, h.Name)
	return err == nil && local
}
