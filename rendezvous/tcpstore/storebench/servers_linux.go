package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"muster/rendezvous/tcpstore"
)

// server is a store in a process of its own.
type server struct {
	cmd  *exec.Cmd
	in   io.Closer // the process ends when this is closed
	pid  int
	addr netip.AddrPort
	term bool // the process ends with SIGTERM instead
}

// serve is the process behind startOurs.
func serve(loops int, in io.Reader, out io.Writer) error {
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Hosts: []string{"127.0.0.1"}, Loops: loops})
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(out, os.Getpid(), s.Port())
	_, _ = io.Copy(io.Discard, in)
	return s.Close()
}

func startOurs(ctx context.Context, loops int) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(exec.CommandContext(ctx, self, "-serve", "-loops", strconv.Itoa(loops)), sayPort)
}

// startMuster starts the store as users do.
func startMuster(ctx context.Context, muster string) (*server, error) {
	s, err := start(exec.CommandContext(ctx, muster, "store", "--bind", "127.0.0.1:0"), func(s *server, line string) (err error) {
		s.pid, s.term = s.cmd.Process.Pid, true
		s.addr, err = netip.ParseAddrPort(strings.TrimSpace(line))
		return err
	})
	return s, err
}

// sayPort reads the process id and the port that a server says first.
func sayPort(s *server, line string) error {
	var port uint16
	_, err := fmt.Sscan(line, &s.pid, &port)
	s.addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	return err
}

// peerProgram hosts PyTorch's own server; its argument is the backend.
const peerProgram = `
import os, resource, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=sys.argv[1] == "libuv")
print(os.getpid(), store.port, flush=True)
sys.stdin.read()
`

// startPeer starts PyTorch's server. It looks up the name of every client's address: nsswitch and resolv are the
// contents of the files in /etc that say where, which takes root and a mount namespace. dir is for copies of them.
func startPeer(ctx context.Context, python, backend, dir, nsswitch, resolv string) (*server, error) {
	if os.Geteuid() != 0 {
		return start(exec.CommandContext(ctx, python, "-c", peerProgram, backend), sayPort)
	}
	for name, text := range map[string]string{"nsswitch.conf": nsswitch, "resolv.conf": resolv} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	const script = `cd "$0" && mount --bind nsswitch.conf /etc/nsswitch.conf && mount --bind resolv.conf /etc/resolv.conf && exec "$@"`
	return start(exec.CommandContext(ctx, "unshare", "-m", "sh", "-c", script, dir, python, "-c", peerProgram, backend), sayPort)
}

// start starts a server, which understands what it says in its first line.
func start(cmd *exec.Cmd, understand func(s *server, line string) error) (*server, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	//nolint:forbidigo // a measuring program: its children need none of what internal/proc promises
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start a server: %w", err)
	}
	s := &server{cmd: cmd, in: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		err = understand(s, line)
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("cannot start a server: it did not say its port: %w", err)
	}
	return s, nil
}

func (s *server) stop() {
	_ = s.in.Close()
	if s.term {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
	}
	late := time.AfterFunc(10*time.Second, func() { _ = s.cmd.Process.Kill() })
	defer late.Stop()
	_ = s.cmd.Wait() // how it ends says nothing about what was measured
}

// cpu returns the processor time that the server's process has used. The kernel counts it exactly and shows it in ticks
// of 10 ms.
func (s *server) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("cannot read the processor time of a server")
	}
	ticks := 0
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// memory returns the resident set of the server in bytes.
func (s *server) memory() (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.pid))
	if err != nil {
		return 0, err
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0, err
	}
	return resident * os.Getpagesize(), nil
}
