package here

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
	"muster/internal/accel/rehearsal"
	"muster/internal/errhint"
	"muster/internal/hardware"
	"muster/launch/devices"
	"muster/launch/job"
	"muster/launch/plan"
)

// FakeNodeVariable is the variable that names this node among those of a spec.
const FakeNodeVariable = "MUSTER_FAKE_NODE"

// FakeNode is the name of this node among those of a spec: several may be on one machine.
func (h *Here) FakeNode(host string) string {
	return cmp.Or(h.Getenv(FakeNodeVariable), h.Name, host)
}

// Look finds the accelerators that the options ask for; what they do not say of this machine is filled in. moments is
// how often what only several readings tell is read.
func (h *Here) Look(ctx context.Context, o hardware.Options, moments int) (hardware.Hardware, error) {
	o.Moments, o.Host, o.FakeNode, o.TempDir = moments, Hostname(), h.FakeNode(Hostname()), os.TempDir()
	o.Environ, o.Lookup, o.Simulated = h.Environ, h.LookupEnv, h.Simulated()
	return hardware.Look(ctx, o)
}

// onFiles finds the accelerators that a job has here by files alone, at once.
func (h *Here) onFiles(ctx context.Context, j *job.Job) (hardware.Hardware, error) {
	o := hardware.Options{Spec: "auto", OnReal: j.FakeOnReal, Exec: probe.ExecNone}
	if j.Fake != "" {
		o.Spec = "fake:" + j.Fake
	}
	return h.Look(ctx, o, 0)
}

// Machine implements node.Here.
func (h *Here) Machine(j job.Job, log zerolog.Logger) (plan.Machine, error) {
	m := plan.Machine{RuntimeDir: h.Getenv("XDG_RUNTIME_DIR"), CacheDir: h.cacheDir()}
	var err error
	if m.Dir, err = os.Getwd(); err != nil {
		return m, errhint.Code(errhint.With(fmt.Errorf("cannot tell the working directory: %w", err),
			"was it removed? change to one that is there"), errhint.Usage)
	}
	if m.TempDir, err = filepath.Abs(os.TempDir()); err != nil {
		return m, fmt.Errorf("cannot tell the directory of temporary files: %w", err)
	}
	m.Hostname, m.Token = h.HostOf(&j), h.Token != nil || len(j.Hosts.Nodes) > 0
	root := accel.Real()
	seen := j.Lookup() // what workers will be told of devices counts, not what we were
	near, lookup := root, seen
	find := func() accel.Inventory { return accel.Detect(root, seen) }
	var standIns func([]int) ([]int, error)
	var rehearsed *rehearsal.Fake
	if j.Fake != "" {
		fake, err := hardware.LoadFake(j.Fake, m.Hostname, j.FakeOnReal)
		if err != nil {
			return m, err
		}
		level := zerolog.WarnLevel
		if h.Simulated() {
			level = zerolog.DebugLevel // whoever simulates the nodes has said so of all
		}
		log.WithLevel(level).Str("spec", fake.Path()).Msg(fake.Banner())
		if fake.HasNetwork() && !j.Check.Network {
			log.Warn().Str("spec", fake.Path()).Msg("the spec says something of networks, which nobody looks at: " +
				"nodes probe each other only in their check (--network-check), and with a token (--token-file)")
		}
		m.DeviceEnv, m.RoundEnv, m.Untaken = fake.Env(), fake.RoundEnv, fake.Untaken
		rehearsed = fake
		near, lookup = fake.Root(root), fake.Lookup(seen)
		find = func() accel.Inventory { return fake.Detect(root, seen) }
		standIns = func(cpus []int) ([]int, error) { return fake.OnMachine(cpus, root) }
	}
	use := func(ctx context.Context, gpus int, every time.Duration, told func([]nvline.Use)) error {
		return hardware.WatchUse(ctx, rehearsed, h.Environ, gpus, every, told)
	}
	d := devices.New(devices.Config{Job: &j, Near: near, Lookup: lookup, Detect: find, WatchUse: use, StandIns: standIns, Log: log})
	m.CountWorkers, m.CountDevices, m.AssignDevices, m.BindWorkers = d.Count, d.Visible, d.Assign, d.Bind
	m.DeviceUse = d
	return m, nil
}
