package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
)

// Limits of what is read of a kernel log. The kernel keeps some MiB at most.
const (
	maxLogLines = 200_000
	maxLogBytes = 16 << 20
	maxRecord   = 8192 // of /dev/kmsg, by the kernel's own limit
	journalTime = 5 * time.Second
)

// KernelLog reads /dev/kmsg, which takes CAP_SYSLOG or kernel.dmesg_restrict=0; else asks journalctl, else reads what a
// log daemon has written. Containers mostly have none of them.
func (host) KernelLog() (KernelLog, error) {
	log, err := readKmsg("/dev/kmsg")
	if err == nil {
		return log, nil
	}
	if log, ok := askJournal(); ok {
		return log, nil
	}
	for _, path := range []string{"/var/log/kern.log", "/var/log/messages"} {
		if log, ok := readSyslog(path); ok {
			return log, nil
		}
	}
	return KernelLog{}, err
}

// readKmsg reads all records. The file has one for each call, and none is waited for.
func readKmsg(path string) (KernelLog, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return KernelLog{}, fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return KernelLog{}, fmt.Errorf("cannot tell the time since boot: %w", err)
	}
	log := KernelLog{From: path}
	record := make([]byte, maxRecord)
	for range maxLogLines {
		n, err := unix.Read(fd, record)
		switch {
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return log, nil
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR), errors.Is(err, unix.EINVAL):
			continue // overwritten while we read, or longer than all records are
		case err != nil:
			return KernelLog{}, fmt.Errorf("%s: %w", path, err)
		}
		if line, err := parseKmsg(record[:n], time.Duration(now.Nano())); err == nil {
			log.Lines = append(log.Lines, line)
		}
	}
	return log, nil
}

// askJournal runs journalctl, whose readers need no capability but a group.
func askJournal() (KernelLog, bool) {
	for _, path := range []string{"/usr/bin/journalctl", "/bin/journalctl"} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		c, err := proc.Confine(context.Background(), proc.Confinement{
			Path: path, Args: []string{"journalctl", "--dmesg", "--boot", "--output=json", "--quiet", "--no-pager"},
			Env:      []string{"LC_ALL=C", "PATH=/usr/bin:/bin"},
			Deadline: journalTime, Grace: time.Second / 2, MaxStdout: maxLogBytes, MaxStderr: maxRecord,
		})
		if err != nil || c.TimedOut || c.Abandoned != nil || !c.Exit.Success() {
			return KernelLog{}, false
		}
		lines := parseJournal(c.Stdout, time.Now())
		return KernelLog{From: "journalctl", Lines: lines}, len(lines) > 0 // a user without the group sees nothing, and no error
	}
	return KernelLog{}, false
}

// readSyslog reads the end of a log file.
func readSyslog(path string) (KernelLog, bool) {
	f, err := os.Open(path)
	if err != nil {
		return KernelLog{}, false
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return KernelLog{}, false
	} else if info.Size() > maxLogBytes {
		if _, err := f.Seek(-maxLogBytes, io.SeekEnd); err != nil {
			return KernelLog{}, false
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxLogBytes))
	if err != nil {
		return KernelLog{}, false
	}
	return KernelLog{From: path, Lines: parseSyslog(text, time.Now(), bootTime())}, true
}

// bootTime is when this kernel started, by /proc/stat.
func bootTime() time.Time {
	text, _ := os.ReadFile("/proc/stat") // without it all that the file has counts
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "btime "); ok {
			if s, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64); err == nil {
				return time.Unix(s, 0)
			}
		}
	}
	return time.Time{}
}
