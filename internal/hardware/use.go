package hardware

import (
	"context"
	"os"
	"time"

	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
	"muster/internal/accel/rehearsal"
)

// WatchUse has told called with what NVIDIA's GPUs are used for, every so often, until ctx ends: as NVML, or nvidia-smi,
// says it, or a fake in their place. gpus is how many there are. The error says why it has ended before ctx did.
func WatchUse(ctx context.Context, fake *rehearsal.Fake, environ []string, gpus int, every time.Duration, told func([]nvline.Use)) error {
	o := probe.Options{Environ: environ, Exec: probe.ExecAuto, GPUs: gpus}
	if fake != nil {
		return probe.ReplayWatch(ctx, fake.NVMLUse, o, every, told)
	}
	o.Executable, _ = os.Executable() // unknown: none is looked for beside it
	return probe.Watch(ctx, o, every, told)
}
