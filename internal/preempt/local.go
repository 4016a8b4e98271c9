package preempt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"muster/internal/printable"
	"muster/internal/proc"
)

// Signals has a notice for each signal that comes through a channel.
func Signals(signals <-chan syscall.Signal) *Source {
	count := 0
	return &Source{name: "signal", ask: func(ctx context.Context) (*Notice, error) {
		select {
		case s := <-signals:
			count++
			return &Notice{What: proc.SignalName(s), id: strconv.Itoa(count)}, nil
		case <-ctx.Done():
			return nil, nil
		}
	}}
}

// fileEvery is how often a file is looked for.
const fileEvery = time.Second

// File has a notice when a file appears, or changes. One that is there when File is called is left over from another
// job: it counts when it is written anew.
func File(path string) *Source {
	old, _ := fileID(path)
	return &Source{
		name: "file " + path, every: fileEvery, instead: "name another file with --ckpt-on-file", local: true,
		ask: func(context.Context) (*Notice, error) {
			id, err := fileID(path)
			switch {
			case err != nil:
				return nil, err
			case id == "":
				old = ""
				return nil, nil
			case id == old:
				return nil, nil
			}
			return &Notice{What: path + " is there", id: id}, nil
		},
	}
}

// fileID tells a file from what it was before, empty where there is none.
func fileID(path string) (string, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		return "", fmt.Errorf("%s is a directory", path)
	}
	return info.ModTime().String(), nil
}

const (
	commandEvery = 5 * time.Second
	commandLimit = 10 * time.Second
)

// Command has a notice when a command of the shell ends with status 0. env is its environment, "NAME=VALUE". A command
// that hangs is killed. shown is the command as it may be shown, without secrets.
func Command(command, shown string, env []string) *Source {
	s := commandWithin(commandLimit, command, env)
	s.name = "command " + printable.Line(shown, 80)
	return s
}

func commandWithin(limit time.Duration, command string, env []string) *Source {
	return &Source{
		name: "command", every: commandEvery, instead: "correct the command of --ckpt-on-command", local: true,
		ask: func(ctx context.Context) (*Notice, error) {
			// The shell writes the status itself: while workers run somebody else may take that of the shell
			// (proc.Confine).
			done, err := proc.Confine(ctx, proc.Confinement{
				Path: "/bin/sh", Args: []string{"/bin/sh", "-c", `/bin/sh -c "$1" >/dev/null; echo $?`, "sh", command}, Env: env,
				Deadline: limit, Grace: time.Second, MaxStdout: 16, MaxStderr: 1 << 10,
			})
			if err != nil {
				return nil, fmt.Errorf("cannot execute /bin/sh: %w", err)
			}
			if done.TimedOut {
				return nil, fmt.Errorf("it ran longer than %v and was killed", limit)
			}
			switch status := strings.TrimSpace(string(done.Stdout)); status {
			case "0":
				return &Notice{What: "the command ended with status 0", id: status}, nil
			case "126", "127":
				return nil, fmt.Errorf("it ended with status %s: %s", status, printable.Line(strings.TrimSpace(string(done.Stderr)), 200))
			case "":
				return nil, errors.New("it was killed")
			}
			return nil, nil
		},
	}
}
