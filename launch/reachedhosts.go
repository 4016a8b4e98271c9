package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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

	mu      sync.Mutex
	now     reachedState
	waiting string // the lost host of which the launcher could not be told, which is said once
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
		return "", errhint.With(errhint.Usagef("cannot scale the job to %s: minReplicas and maxReplicas of its file allow %d to %d",
			wording.Plural(n, "host"), r.rules.Min, r.rules.Max),
			fmt.Sprintf("give a number from %d to %d, or change them in the file and start it anew", r.rules.Min, r.rules.Max))
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
	next, text, _ := r.withoutLocked(i)
	return text, r.changeLocked(next)
}

// withoutLocked is what follows where a host is lost, in words too. replaced says that another one takes its place.
func (r *reachedHosts) withoutLocked(i int) (next reachedState, text string, replaced bool) {
	next = r.now
	next.hosts = slices.Delete(slices.Clone(r.now.hosts), i, i+1)
	text = hostNames(r.now.hosts[i:i+1]) + " is lost"
	switch limit := r.rules.Limit; {
	case !r.rules.Replace:
		text += ", and is not replaced: its restart policy is for other failures"
	case limit >= 0 && next.replaced >= limit:
		text += fmt.Sprintf(", and is not replaced: the limit of %d is reached (restartLimit)", limit)
	default:
		h, err := next.come(r.rules)
		if err != nil {
			return next, text + ", and is not replaced: " + err.Error(), false
		}
		next.replaced++
		return next, text + ", and " + hostNames([]job.ReachedHost{h}) + " takes its place", true
	}
	return next, text, false
}

// lostEvery is how often the launcher's word of lost hosts is looked for.
const lostEvery = time.Second

// watch has other hosts take the places of those that the launcher has lost, until closed.
func (r *reachedHosts) watch(closed <-chan struct{}) {
	if r == nil {
		return
	}
	tick := time.NewTicker(lostEvery)
	defer tick.Stop()
	for seen := 0; ; {
		select {
		case <-closed:
			return
		case <-tick.C:
		}
		seen = r.lookForLost(seen)
	}
}

// lookForLost replaces the hosts that the launcher has lost since so many of them were seen, and returns of how many it
// has been told. Where that fails it is tried again.
func (r *reachedHosts) lookForLost(seen int) int {
	text, err := os.ReadFile(filepath.Join(r.runDir, job.PodDir, job.LostFile))
	if err != nil {
		return seen // none yet
	}
	lines := strings.SplitAfter(string(text), "\n")
	lines = lines[:len(lines)-1] // the last one is not complete
	for ; seen < len(lines); seen++ {
		if !r.lost(strings.TrimSuffix(lines[seen], "\n")) {
			break
		}
	}
	return seen
}

// lost replaces a host that is lost by itself. Where nothing takes its place it stays named: its machine may come back,
// and Horovod tries it again. It returns false where the launcher could not be told.
func (r *reachedHosts) lost(host string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.now.hosts, func(h job.ReachedHost) bool { return h.Host == host })
	if i < 0 {
		return true // kill-node has said what follows, or it was taken away
	}
	next, text, replaced := r.withoutLocked(i)
	if replaced {
		if err := r.changeLocked(next); err != nil {
			if r.waiting != host {
				r.log.Error().Err(err).Str("node", host).Msg("a lost host is not replaced yet; it is tried again")
			}
			r.waiting = host
			return false
		}
	}
	r.waiting = ""
	r.log.Warn().Msg(text)
	return true
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
