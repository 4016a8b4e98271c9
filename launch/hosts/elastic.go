package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/elastic"
	"muster/horovod/kv"
	"muster/internal/errhint"
	"muster/internal/hostaddr"
	"muster/launch"
	"muster/launch/control"
	"muster/launch/job"
	"muster/sshexec"
)

// elasticJob is an elastic Horovod job: its driver runs here, its workers on hosts that come and go.
type elasticJob struct {
	config   ElasticConfig
	launcher *launcher
	dialer   *sshexec.Dialer
	marker   string
	// reaching ends when hosts are no longer needed: those that are being reached then, too.
	reaching context.Context
	stop     context.CancelFunc
	logs     *LogFiles // of all hosts
	doors    *kv.Doors // where the driver listens: on what the hosts reach, and on nothing else
	clients  *kv.Clients
	told     drivenStatus // how the job stands

	mu    sync.Mutex
	hosts map[string]*elasticHost
	ids   int           // of processes
	world int           // the number of the newest one
	rules *elasticRules // set before the driver runs
}

// ElasticConfig is an elastic Horovod job.
type ElasticConfig struct {
	// Launcher has the job; its Horovod has no slots.
	Launcher LauncherConfig
	// Rules are those of the world, as far as Horovod has them.
	Rules elastic.Rules
	// Source has the hosts, which are looked for no more often than once in MinInterval; 0: as often as Horovod does.
	Source      discovery.Source
	MinInterval time.Duration
	// CheckJob returns a job on hosts that does nothing.
	CheckJob func(found []horovod.Host) (job.Job, error)
}

// LaunchElastic runs an elastic Horovod job. Its error, which is printed last, says how the job has ended.
func LaunchElastic(ctx context.Context, c ElasticConfig) error {
	j := &elasticJob{config: c, launcher: newLauncher(c.Launcher), marker: launcherMarker(), hosts: map[string]*elasticHost{}}
	err := j.run(ctx)
	if _, told := errors.AsType[errhint.StatusError](err); told {
		return err
	}
	return j.launcher.compat(err)
}

func (j *elasticJob) run(ctx context.Context) (err error) {
	l, log, asked := j.launcher, j.launcher.config.Log, &j.launcher.config.Job
	j.logs = collectLogs(asked.Hosts.CollectLogs, asked.Hosts.CollectLimit, log)
	if err := l.prepare(); err != nil {
		return l.refused(asked, err)
	}
	ctx, in := launch.WatchSignals(ctx, asked.Stop.Handled, 0)
	defer in.Close()
	j.reaching, j.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer j.stop()
	source, err := j.checked(ctx)
	if stopped, ok := errors.AsType[*launch.SignalError](err); ok {
		return errhint.Code(fmt.Errorf("the job was stopped: muster %w", stopped), errhint.FromSignal(int(stopped.Signal)))
	}
	if err != nil {
		return l.refused(asked, err)
	}
	view, err := l.openView(ctx)
	if err != nil {
		return l.refused(asked, err)
	}
	defer view.Close() //nolint:contextcheck // it bounds itself
	if err := l.openTree(j.marker); err != nil {
		return err
	}
	defer l.closeTree(&err)
	for _, own := range []*job.Job{&l.job, asked} {
		own.RunID = cmp.Or(own.RunID, variable(l.config.Environ, job.ReachedVariable), strings.TrimPrefix(j.marker, launcherMark))
	}
	defer openFront(frontConfig{ //nolint:contextcheck // its end bounds itself
		RunID: asked.RunID, Name: asked.Command.Name, Role: control.Driver, Environ: l.config.Environ, Grace: asked.Stop.Grace,
		Interrupts: in, Status: j.told.now, Events: &j.told.events, Ask: j.ask, Reach: j.reachRanks, Evidence: j.look,
		Guard: l.tree.RemoveOnDeath, View: view, Log: log,
	}).close()
	if j.dialer, err = l.dialer(j.marker); err != nil {
		return l.refused(asked, err)
	}
	defer func() { _ = j.dialer.Close() }()
	defer j.closeHosts()
	if j.doors, err = kv.NewDoors(); err != nil {
		return errhint.Code(err, errhint.Usage)
	}
	defer func() { _ = j.doors.Close() }()
	j.clients = kv.NewClients(asked.Meeting.StoreAllow, log)
	running, rules, err := j.openRules(ctx)
	if err != nil {
		return err
	}
	j.rules = rules
	cfg := j.driverConfig(source)
	cfg.Began = j.began
	judged(&cfg.Rules, j.launcher.job.Restart)
	driver, err := elastic.New(cfg)
	if err != nil {
		return err
	}
	over := make(chan struct{})
	var hurrying sync.WaitGroup
	hurrying.Go(func() {
		select {
		case <-in.Hurry:
			j.closeHosts() // with all that runs there
		case <-over:
		}
	})
	result, err := driver.Run(running)
	close(over)
	hurrying.Wait()
	rules.result = result
	stopped, bySignal := errors.AsType[*launch.SignalError](context.Cause(ctx))
	if asked.Restart.Clean != job.CleanAll && (bySignal || err != nil) {
		j.sweep(asked.Stop.Grace)
	}
	if bySignal {
		rules.stopped(stopped)
		return errhint.Code(fmt.Errorf("the job was stopped: muster %w", stopped), errhint.FromSignal(int(stopped.Signal)))
	}
	if err == nil && result.Status != errhint.OK {
		err = errhint.Code(errors.New(result.Reason), result.Status)
	}
	rules.ended(err)
	if err == nil {
		log.Info().Int("worlds", result.Worlds).Msg("the job has succeeded")
	}
	return err
}

// driverConfig is what the driver works by.
func (j *elasticJob) driverConfig(source discovery.Source) elastic.Config {
	return elastic.Config{
		Rules: j.config.Rules, Source: source, MinInterval: j.config.MinInterval, Spawner: j, Listener: j.doors, Clients: j.clients,
		Advertise: "127.0.0.1", Env: j.env, Log: j.launcher.config.Log, Grace: j.launcher.job.Stop.Grace,
	}
}

// env are a host's own variables: where it reaches the driver, and the interfaces that were named. No worker starts
// where the driver cannot listen at its address: somebody else may.
func (j *elasticJob) env(host string) ([]string, error) {
	at := driverAddr(host)
	addr, err := netip.ParseAddr(at)
	if err == nil {
		err = j.doors.Open(j.reaching, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("workers of %s cannot reach the rendezvous: %w", host, err)
	}
	env := []string{"HOROVOD_GLOO_RENDEZVOUS_ADDR=" + at}
	if nics := j.launcher.config.Horovod.NICs; len(nics) > 0 {
		env = append(env, ifaceVars[0]+"="+nics[0], ifaceVars[1]+"="+strings.Join(nics, ","))
	}
	return env, nil
}

// driverAddr is the address of this machine by which a host reaches it.
func driverAddr(host string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	addrs, _, err := hostaddr.Ours(ctx, host)
	if err != nil || len(addrs) == 0 {
		return cmp.Or(hostaddr.Outward(), "127.0.0.1")
	}
	for _, addr := range addrs {
		if !addr.Is4() {
			continue // Horovod's workers speak IPv4
		}
		if own, err := hostaddr.ToReach(netip.AddrPortFrom(addr, 22)); err == nil {
			return own.String()
		}
	}
	return cmp.Or(hostaddr.Outward(), "127.0.0.1")
}
