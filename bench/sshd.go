package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const sshdProgram = "/usr/sbin/sshd"

// hosts are logical hosts on this machine: loopback addresses with OpenSSH servers of this user. All have one port,
// since the peers know of no more, and one home directory. What is started there has a mark in its environment,
// BENCH_HOSTS, the folder where workers say when they began.
type hosts struct {
	dir     string   // BENCH_HOSTS
	home    string   // HOME of the launchers, with their keys, and of the hosts
	addrs   []string // of the hosts
	port    int
	servers []*exec.Cmd
}

// errNoSSHD is why nothing can be measured.
var errNoSSHD = errors.New("there is no OpenSSH server (Debian's openssh-server)")

// openHosts starts n servers at addresses of their own, or one for all of them: OpenSSH listens on 16 addresses at
// most, or on all there are. The caller calls close.
func (b *bench) openHosts(ctx context.Context, n int, one bool) (_ *hosts, err error) {
	if _, err := os.Stat(sshdProgram); err != nil {
		return nil, errNoSSHD
	}
	h := &hosts{}
	if h.dir, err = os.MkdirTemp(b.dir, "hosts-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	h.home = filepath.Join(h.dir, "home")
	if err := os.MkdirAll(h.ssh(""), 0o700); err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 { // where sshd's unprivileged child lives
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return nil, err
		}
	}
	for _, key := range []string{h.ssh("id_ed25519"), h.ssh("host_key")} {
		if _, err := b.output(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key); err != nil {
			return nil, err
		}
	}
	for i := range n {
		h.addrs = append(h.addrs, fmt.Sprintf("127.0.0.%d", i+2))
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", h.addrs[0]+":0")
	if err != nil {
		return nil, err
	}
	h.port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, err
	}
	listen := h.addrs
	if one {
		listen = []string{"0.0.0.0"}
	}
	if err := h.configure(); err != nil {
		return nil, err
	}
	for _, addr := range listen {
		if err := h.serve(ctx, addr); err != nil {
			return nil, err
		}
	}
	return h, h.waitListening(ctx)
}

// ssh is a file of the user's.
func (h *hosts) ssh(name string) string { return filepath.Join(h.home, ".ssh", name) }

// configure writes what clients know: the hosts' key, and for OpenSSH's own client, which does not ask $HOME, a program
// ssh that names the files.
func (h *hosts) configure() error {
	key, err := os.ReadFile(h.ssh("host_key.pub"))
	if err != nil {
		return err
	}
	var known strings.Builder
	for _, addr := range h.addrs {
		fmt.Fprintf(&known, "[%s]:%d %s", addr, h.port, key)
	}
	config := fmt.Sprintf("Host *\n  Port %d\n  IdentityFile %s\n  UserKnownHostsFile %s\n", h.port, h.ssh("id_ed25519"),
		h.ssh("known_hosts"))
	program := fmt.Sprintf("#!/bin/sh\nexec /usr/bin/ssh -F %s \"$@\"\n", h.ssh("client"))
	return errors.Join(
		os.WriteFile(h.ssh("known_hosts"), []byte(known.String()), 0o600),
		os.WriteFile(h.ssh("client"), []byte(config), 0o600),
		os.WriteFile(filepath.Join(h.home, "ssh"), []byte(program), 0o700),
	)
}

// serve starts a server.
func (h *hosts) serve(ctx context.Context, addr string) error {
	config := filepath.Join(h.dir, "sshd_config-"+addr)
	text := fmt.Sprintf("ListenAddress %s\nPort %d\nHostKey %s\nAuthorizedKeysFile %s\nSetEnv HOME=%s BENCH_HOSTS=%s\n",
		addr, h.port, h.ssh("host_key"), h.ssh("id_ed25519.pub"), h.home, h.dir) +
		"PidFile none\nUsePAM no\nStrictModes no\nUseDNS no\nPrintMotd no\nPermitRootLogin yes\nPasswordAuthentication no\n" +
		"KbdInteractiveAuthentication no\nMaxStartups 1000\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, sshdProgram, "-D", "-E", config+".log", "-f", config)
	if err := cmd.Start(); err != nil { //nolint:forbidigo // an ordinary child of an ordinary program
		return err
	}
	h.servers = append(h.servers, cmd)
	return nil
}

func (h *hosts) waitListening(ctx context.Context) error {
	var d net.Dialer
	deadline := time.Now().Add(10 * time.Second)
	for _, addr := range h.addrs {
		for {
			conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(addr, strconv.Itoa(h.port)))
			if err == nil {
				if err := conn.Close(); err != nil {
					return err
				}
				break
			}
			if ctx.Err() != nil || time.Now().After(deadline) {
				logs, _ := filepath.Glob(filepath.Join(h.dir, "*.log")) // the pattern is well-formed
				var text strings.Builder
				for _, file := range logs {
					content, _ := os.ReadFile(file) // a word more in an error
					text.Write(content)
				}
				return fmt.Errorf("no sshd listens: %w\n%s", err, text.String())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

// hostfile writes one with a line for each host, behind whose address stands rest.
func (h *hosts) hostfile(name, rest string) (string, error) {
	path := filepath.Join(h.dir, name)
	return path, os.WriteFile(path, []byte(strings.Join(h.addrs, rest+"\n")+rest+"\n"), 0o600)
}

// start runs a launcher whose workers say on the hosts when they began; stamps of the job are theirs.
func (h *hosts) start(ctx context.Context, b *bench, l launcher, spec jobSpec) (*job, error) {
	stamps := filepath.Join(h.dir, "stamps")
	if err := os.Remove(stamps); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	spec.env = append([]string{"HOME=" + h.home}, spec.env...)
	j, err := b.start(ctx, l, spec)
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(stamps, filepath.Join(j.dir, "stamps")); err != nil {
		return nil, errors.Join(err, j.end())
	}
	return j, nil
}

// processes returns what runs on the hosts: what has their mark or descends from such, and what runs the binary that
// muster brought there.
func (h *hosts) processes() []int {
	marked := job{mark: []byte("BENCH_HOSTS=" + h.dir)}
	found := marked.processes()
	brought, _ := filepath.Glob(filepath.Join(h.home, ".cache/muster/bin/muster-*")) // the pattern is well-formed
	for _, program := range brought {
		found = append(found, running(program)...)
	}
	return found
}

// clear kills what still runs there.
func (h *hosts) clear() error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		pids := h.processes()
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v on the hosts survive SIGKILL", pids)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
		}
	}
}

// close ends the servers and what they have started.
func (h *hosts) close() error {
	for _, cmd := range h.servers {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}
	if h.dir == "" {
		return nil
	}
	return errors.Join(h.clear(), os.RemoveAll(h.dir))
}
