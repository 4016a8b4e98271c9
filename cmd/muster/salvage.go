package main

import (
	"context"
	"errors"
	"os/signal"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/checkpointd"
	"muster/internal/errhint"
)

// salvage saves what a killed agent has left in memory, within limit, and returns the exit status. The guardian starts
// it when nothing else is left of the job; whoever killed that may go on killing politely, and may not read our output
// any more.
func (a *app) salvage(label, limit string) int {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	log := a.console.Logger(zerolog.InfoLevel)
	within, err := time.ParseDuration(limit)
	if err != nil {
		log.Error().Err(err).Msg("checkpoints in memory are not saved")
		return errhint.Usage
	}
	over := errors.New("it took longer than --ckpt-salvage " + limit)
	ctx, cancel := context.WithTimeoutCause(context.Background(), within, over)
	defer cancel()
	if err := checkpointd.Salvage(ctx, label, "", log); err != nil {
		log.Error().Err(err).Str("hint", errhint.Of(err)).Msg("muster was killed, and what was in memory is not on disk: " +
			checkpointd.HowToSave)
		return 1
	}
	return errhint.OK
}
