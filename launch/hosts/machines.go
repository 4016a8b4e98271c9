package hosts

import (
	"context"
	"slices"
	"sync/atomic"

	"muster/internal/hostaddr"
	hostlist "muster/internal/hosts"
	"muster/sshexec"
)

// machines are those of the job, with the way to reach each. The returned function closes what they share.
func (l *launcher) machines(marker string) ([]Machine, func(), error) {
	dialer, err := l.dialer(marker)
	if err != nil {
		return nil, nil, err
	}
	names := l.nodeNames()
	all := make([]Machine, len(names))
	l.away = make([]atomic.Bool, len(names))
	for i, n := range l.job.Hosts.Nodes {
		all[i] = Machine{Name: names[i], Start: func(ctx context.Context) (Conn, error) {
			if here(ctx, n.Host) {
				return l.startHere(marker, names[i])
			}
			l.away[i].Store(true)
			return dialer.Start(ctx, n.Host, []string{AgentCommand})
		}}
	}
	return all, func() { _ = dialer.Close() }, nil
}

// dialer reaches machines by ssh.
func (l *launcher) dialer(marker string) (*sshexec.Dialer, error) {
	rules := &l.job.Hosts.SSH
	return sshexec.New(sshexec.Config{
		Program: rules.Program, User: rules.User, Port: rules.Port, Identity: rules.Identity, HostKeys: rules.HostKeys,
		Options: rules.Options,
		Home:    variable(l.config.Environ, "HOME"), Env: lookup(l.config.Environ), Environ: append(slices.Clip(l.config.Environ), marker),
		Tree:   l.tree,
		Binary: "/proc/self/exe", Version: "muster version " + l.config.Version, Log: l.config.Log,
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
