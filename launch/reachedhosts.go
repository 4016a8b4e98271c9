package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/internal/wording"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/rundir"
)

// reachedHosts are the hosts of the launcher that a job's command is. What a cluster's operator does with them is done
// here: it changes their number, and replaces those that are lost.
type reachedHosts struct {
	rules  *job.ReachedHosts
	runDir string
	log    zerolog.Logger

	mu  sync.Mutex
	now reachedState
}

// reachedState is which hosts there are. It changes when the launcher was told.
type reachedState struct {
	hosts    []job.ReachedHost
	spare    []string
	count    int // that there have been, which number the next one
	replaced int
}

func newReachedHosts(rules *job.ReachedHosts, runDir string, log zerolog.Logger) *reachedHosts {
	if rules == nil {
		return nil
	}
	return &reachedHosts{
		rules: rules, runDir: runDir, log: log,
		now: reachedState{hosts: slices.Clone(rules.Hosts), spare: slices.Clone(rules.Spare), count: len(rules.Hosts)},
	}
}

// scale has the launcher find so many hosts from now on, and says which come or go.
func (r *reachedHosts) scale(n int) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := len(r.now.hosts)
	switch {
	case r.rules.Min == r.rules.Max:
		return "", errhint.With(errhint.Usagef("cannot scale the job: its launcher has a fixed number of hosts, %d", r.rules.Max),
			"faultTolerant, minReplicas and maxReplicas in the job file allow more")
	case n < r.rules.Min || n > r.rules.Max:
		return "", errhint.Usagef("cannot scale the job to %s: its file allows %d to %d", wording.Plural(n, "host"), r.rules.Min,
			r.rules.Max)
	case n == have:
		return "the launcher has " + wording.Plural(n, "host"), nil
	}
	next := r.now
	next.hosts = slices.Clone(r.now.hosts[:min(n, have)])
	gone := r.now.hosts[len(next.hosts):]
	var come []job.ReachedHost
	for len(next.hosts) < n {
		h, err := next.come(r.rules)
		if err != nil {
			return "", err
		}
		come = append(come, h)
	}
	for _, h := range gone { // it may come back, behind the others
		next.spare = append(slices.Clip(next.spare), h.Host)
	}
	if err := r.changeLocked(next); err != nil {
		return "", err
	}
	if len(come) > 0 {
		return fmt.Sprintf("the launcher finds %s from now on: %s", wording.Plural(n, "host"), hostNames(come)), nil
	}
	return fmt.Sprintf("the launcher finds %s from now on, and no more %s", wording.Plural(n, "host"), hostNames(gone)), nil
}

// kill has a host be lost, named by its number, its address or that of its replica, and says what follows.
func (r *reachedHosts) kill(ctx context.Context, request control.Request) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.now.hosts, func(h job.ReachedHost) bool { return h.Name == request.Node || h.Host == request.Node })
	if n, err := strconv.Atoi(request.Node); err == nil && i < 0 && n >= 0 && n < len(r.now.hosts) {
		i = n
	}
	if i < 0 {
		return "", errhint.With(errhint.Usagef("the job's launcher has no host %q", request.Node), "it has "+hostNames(r.now.hosts))
	}
	lost := r.now.hosts[i]
	launcher, err := r.launcher(ctx)
	if err != nil {
		return "", err
	}
	request.Node = lost.Host
	if _, err := launcher.Do(ctx, request); err != nil {
		return "", err
	}
	next := r.now
	next.hosts = slices.Delete(slices.Clone(r.now.hosts), i, i+1)
	text := hostNames([]job.ReachedHost{lost}) + " is lost"
	switch limit := r.rules.Limit; {
	case !r.rules.Replace:
		text += ", and is not replaced: its restart policy is for other failures"
	case limit >= 0 && next.replaced >= limit:
		text += fmt.Sprintf(", and is not replaced: the limit of %d is reached (restartLimit)", limit)
	default:
		h, err := next.come(r.rules)
		if err != nil {
			text += ", and is not replaced: " + err.Error()
			break
		}
		next.replaced++
		text += ", and " + hostNames([]job.ReachedHost{h}) + " takes its place"
	}
	return text, r.changeLocked(next)
}

// come adds the next host that can come.
func (s *reachedState) come(rules *job.ReachedHosts) (job.ReachedHost, error) {
	h := job.ReachedHost{Name: rules.Prefix + strconv.Itoa(s.count), Slots: rules.Slots}
	switch {
	case rules.Rehearsed:
		last := netip.AddrFrom4([4]byte{127, 0, byte((s.count + 1) >> 8), byte(s.count + 1)})
		h.Host = last.String()
	case len(s.spare) > 0:
		h.Host, s.spare = s.spare[0], s.spare[1:]
	default:
		return h, errhint.With(errhint.Usagef("there is no other host"),
			"name more of them by --hosts: those behind the first are spare ones")
	}
	s.count++
	s.hosts = append(s.hosts, h)
	return h, nil
}

// changeLocked has the launcher find other hosts.
func (r *reachedHosts) changeLocked(next reachedState) error {
	path := filepath.Join(r.runDir, job.PodDir, job.ReachedFile)
	if err := durable.Replace(path, []byte(job.ReachedText(next.hosts)), 0o600); err != nil {
		return fmt.Errorf("cannot tell the launcher of its hosts: %w", err)
	}
	r.now = next
	r.log.Info().Int("hosts", len(next.hosts)).Msg("the launcher's hosts have changed")
	return nil
}

// launcher is the muster in the job's command that reaches the hosts.
func (r *reachedHosts) launcher(ctx context.Context) (*control.Client, error) {
	err := errors.New("the launcher in the job's command does not run, or is no elastic job of muster horovodrun")
	dirs, listErr := rundir.List(filepath.Dir(r.runDir))
	name := rundir.Name(job.ReachedID(rundir.IDOf(r.runDir))) + rundir.Launcher
	for _, dir := range dirs {
		if !strings.HasPrefix(filepath.Base(dir), name) {
			continue
		}
		c := control.Dial(dir)
		a, askErr := c.Status(ctx, control.Node)
		if askErr == nil && a.Muster.Role == control.Driver {
			return c, nil
		}
		err = cmp.Or(askErr, err)
	}
	return nil, errhint.Code(fmt.Errorf("cannot rehearse the loss of a host now: %w", cmp.Or(listErr, err)), errhint.TryAgain)
}

// hostNames names hosts for people.
func hostNames(hosts []job.ReachedHost) string {
	var list []string
	for _, h := range hosts {
		list = append(list, h.Name+" ("+h.Host+")")
	}
	return strings.Join(list, ", ")
}
