package main

import (
	"math/rand/v2"
	"net"
	"os"

	"github.com/rs/zerolog"

	"muster/cmd/dialect"
	"muster/cmd/here"
	"muster/internal/hardware"
	"muster/internal/hostaddr"
)

// surroundings are what a platform may be recognised by on this machine.
func (a *app) surroundings() dialect.Machine {
	count := func(fake string) (backend string, n int) {
		return hardware.Count(fake, a.here.FakeNode(here.Hostname()), a.here.LookupEnv)
	}
	return dialect.Machine{
		Files: os.DirFS("/"), Hostname: here.Hostname(), OwnAddr: hostaddr.Outward, Accelerators: count,
		FreePort: unusedPort, Stat: os.Stat,
	}
}

// unusedPort finds a port of this machine at which nothing listens, of those that the kernel gives nobody by itself: a job
// may use it late, and again after a pause.
func unusedPort() (port int, err error) {
	const first, end, tries = 10_000, 32_768, 100 // the end is where the kernel's own begin, unless told otherwise
	for range tries {
		port = first + rand.N(end-first)
		var l *net.TCPListener
		if l, err = net.ListenTCP("tcp", &net.TCPAddr{Port: port}); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

// readDir reads the names in a directory.
func readDir(name string) ([]string, error) {
	entries, err := os.ReadDir(name)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// workingDir is the working directory, empty where it cannot be told; plans are refused then.
func workingDir() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	return dir
}

// tellPlatform logs what was found and what came of it.
func tellPlatform(req dialect.Request, log zerolog.Logger) {
	f, job := req.Platform, &req.Job
	if f == nil {
		return
	}
	e := log.Info().Str("platform", f.Name).Strs("found_by", f.Why)
	if len(f.Also) > 0 {
		e = e.Strs("also_found", f.Also)
	}
	if notes := f.Remarks(); len(notes) > 0 {
		e = e.Strs("notes", notes)
	}
	if !job.Alone() {
		e = e.Int("max_nodes", job.Nodes.Max)
		if rank := job.Meeting.NodeRank; rank >= 0 {
			e = e.Int("node_rank", rank)
		}
		if at := job.Meeting.Endpoints; len(at) > 0 {
			e = e.Stringer("meet_at", at[0])
		}
	}
	e.Msg("platform found")
}
