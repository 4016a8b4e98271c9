package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/rendezvous/rollcall"
)

const (
	minToken  = 16       // bytes of the shortest token
	maxToken  = 64 << 10 // of the longest
	tokenSize = 32       // of those that we make, before they are written as text
)

// newTokenCmd is "muster token": it makes a job's token.
func newTokenCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "token [FILE]",
		Short: "Make a token for a job on several nodes",
		Long: `Make a job's token: 32 random bytes, as text. With FILE it goes there, and nobody else
may read that; a file that exists stays as it is. Without, it is printed.

Every node of the job gets the same one by --token-file FILE. What the nodes tell each
other is sealed with it, and connections between them are encrypted: who lacks it can
neither change what the job does nor read checkpoints on their way. A job that muster
starts itself by --hosts has one of its own and needs none. Make a new one for each job.`,
		Example:     "  muster token job.token\n  muster run --nnodes 2 --run-id exp7 --rdzv muster://node1 --token-file job.token -- python train.py",
		Annotations: map[string]string{exitAnnotation: "  0    the token was made\n  2    usage error, FILE exists, or cannot be written\n  125  internal error of muster\n"},
		Args:        cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			random := make([]byte, tokenSize)
			_, _ = rand.Read(random) // it never fails
			text := hex.EncodeToString(random) + "\n"
			if len(args) == 0 {
				say(a.stdout, "%s", text)
				return nil
			}
			return writeToken(args[0], text)
		},
	}
}

// writeToken makes a file that only we may read.
func writeToken(path, text string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errhint.With(errhint.Usagef("cannot write the token to %s: it exists", path), "who has the old token would lose the job: name another file, or remove that one")
	}
	if err != nil {
		return errhint.Usagef("cannot write the token: %w", err)
	}
	_, err = io.WriteString(f, text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errhint.Usagef("cannot write the token to %s: %w", path, errors.Join(err, os.Remove(path)))
	}
	return nil
}

// readToken reads a job's token. A file that others could have written is refused: they would know the token. So is one
// that a stranger's link leads to, which may be a file of ours that he can read. Where others can read the token a
// warning says so, except in mounted secrets, which lie in memory or are read-only, and are given to the container
// alone, whatever their mode says.
func readToken(file string, log zerolog.Logger) ([]byte, error) {
	f, err := openToken(file)
	if err != nil {
		return nil, errhint.Code(fmt.Errorf("cannot read the job's token: %w", err), errhint.Usage)
	}
	defer func() { _ = f.Close() }()
	if err := checkTokenFile(f, file, log); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return nil, errhint.Code(fmt.Errorf("cannot read the job's token: %w", err), errhint.Usage)
	}
	token := bytes.TrimSpace(text)
	switch {
	case len(text) > maxToken:
		return nil, errhint.Usagef("cannot use the token in %s: it has more than %d bytes", file, maxToken)
	case len(token) < minToken:
		return nil, errhint.With(errhint.Usagef("cannot use the token in %s: it has %d bytes, at least %d are wanted", file, len(token), minToken),
			"make one with: muster token FILE")
	}
	return token, nil
}

// openToken opens a token's file, and of links on the way follows only those that nobody else chose. A named pipe is
// waited for when it is known to be ours.
func openToken(file string) (*os.File, error) {
	path := file
	if !isDescriptor(file) {
		var err error
		if path, err = durable.Target(file); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe without a writer does not keep us
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if ours := tokenOwner(info, file) == nil; ours && info.Mode()&fs.ModeNamedPipe != 0 {
		if err := awaitWriter(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// awaitWriter waits until somebody has written to a named pipe that was opened without a writer. To open it a second time
// would lose what a writer sent to the first: our opening is what lets it write.
func awaitWriter(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if _, failed = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); !errors.Is(failed, unix.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, failed)
}

// isDescriptor reports whether a path is that of an open file of this process, as of a shell's <(command): whoever
// started us has opened it.
func isDescriptor(path string) bool {
	path = filepath.Clean(path)
	for _, dir := range []string{"/dev/fd/", "/proc/self/fd/", fmt.Sprintf("/proc/%d/fd/", os.Getpid())} {
		if number, ok := strings.CutPrefix(path, dir); ok && number != "" && strings.Trim(number, "0123456789") == "" {
			return true
		}
	}
	return path == "/dev/stdin"
}

// checkTokenFile returns an error where others could have written what an open file says.
func checkTokenFile(f *os.File, path string, log zerolog.Logger) error {
	info, err := f.Stat()
	if err != nil {
		return errhint.Code(fmt.Errorf("cannot read the job's token: %w", err), errhint.Usage)
	}
	if !info.Mode().IsRegular() && info.Mode()&fs.ModeNamedPipe == 0 {
		return errhint.Usagef("cannot use the token in %s: it is no file", path)
	}
	if err := tokenOwner(info, path); err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o044 != 0 && !mounted(f) {
		log.Warn().Str("file", path).Str("mode", fmt.Sprintf("%04o", mode)).
			Msg("others on this machine may read the job's token; chmod 600 keeps it from them")
	}
	return nil
}

// tokenOwner returns an error for a file or pipe that belongs to somebody else, or that others may write to.
func tokenOwner(info fs.FileInfo, path string) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	mode := info.Mode().Perm()
	switch {
	case int(stat.Uid) != os.Geteuid() && stat.Uid != 0 && stat.Uid != rootOwner():
		return errhint.With(errhint.Usagef("cannot use the token in %s: it belongs to another user (uid %d)", path, stat.Uid),
			"it must be yours or root's: who can write it knows the token")
	case mode&0o022 != 0:
		return errhint.With(errhint.Usagef("cannot use the token in %s: others may write to it (mode %04o)", path, mode), "chmod 600 "+path)
	}
	return nil
}

// rootOwner is who owns the root directory: where users are mapped, as in some containers, root is not 0.
func rootOwner() uint32 {
	var stat unix.Stat_t
	if unix.Stat("/", &stat) != nil {
		return 0
	}
	return stat.Uid
}

// sayOpen says what is open to whom in a job of several nodes without a token, and how to close it: as a warning on the node
// that serves the store, so that it is said once. Of simulated nodes, which are on this machine for a while, hardly anybody wants to know.
func (m *meeting) sayOpen(cfg *rollcall.Config, simulated bool) {
	level, at := zerolog.InfoLevel, cfg.Place
	first := m.Endpoints[0]
	if m.Backend != "etcd" {
		at = first.String()
	}
	addr, err := netip.ParseAddr(first.Host)
	if local := first.Host == "localhost" || err == nil && addr.IsLoopback(); !local && (cfg.Hosts || m.Backend == "etcd") {
		level = zerolog.WarnLevel
	} else if local && simulated {
		level = zerolog.DebugLevel
	}
	m.log.WithLevel(level).Msg("no job token: whoever reaches " + at + " can change what this job does, and services between nodes stay off; " +
		"muster token job.token makes one, and --token-file job.token (MUSTER_TOKEN_FILE) on every node closes this")
}
