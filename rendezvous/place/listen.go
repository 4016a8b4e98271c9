package place

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"muster/internal/errhint"
	"muster/internal/hostaddr"
	"muster/rendezvous/membership"
	"muster/rendezvous/tcpstore"
)

// listenWorkers opens this node's store: for the workers when it has rank 0, and for the agents when it has to become
// the host. On a listed endpoint it has that port, so that newcomers find it.
func (m *meeting) listenWorkers(ctx context.Context, addr string) (*tcpstore.Server, error) {
	ports := m.WorkerPorts
	var ips []netip.Addr
	ip, err := netip.ParseAddr(addr)
	if err == nil {
		ips = []netip.Addr{ip}
	} else if ips, _, err = hostaddr.Ours(ctx, addr); err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	if first := m.IsHost != nil && *m.IsHost; len(m.Endpoints) > 1 && m.Backend != "etcd" && !first { // the first has its place
		for _, e := range m.Endpoints[1:] {
			if at, local, err := hostaddr.Ours(ctx, e.Host); err == nil && local {
				ips, ports = at, []int{e.Port} // which another agent of this node may have
			}
		}
	}
	var server *tcpstore.Server
	if m.Port > 0 && m.Backend != "static" {
		server, err = m.listen(ips, m.Port)
	} else {
		server, err = firstFree(ports, func(port int) (*tcpstore.Server, error) { return m.listen(ips, port) })
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errhint.Code(err, errhint.Usage)
	}
	if err != nil {
		return nil,
			errhint.Code(errhint.With(err, "--local-addr or --iface names the address of this node that others reach"), errhint.Usage)
	}
	return server, nil
}

// listenAlone opens the store of a node that meets nobody.
func listenAlone(ctx context.Context, c Config) (*tcpstore.Server, error) {
	m := &c.Job.Meeting
	listen := func(port int) (*tcpstore.Server, error) {
		return Listen(ctx, c.MasterHost, tcpstore.ServerConfig{
			Port: port, OwnUser: !m.AllowsLoopback(), Limits: tcpstore.Limits{Total: m.StoreLimit}, Log: c.Log,
		})
	}
	if m.Port == 0 {
		return firstFree(m.WorkerPorts, listen)
	}
	return listen(m.Port)
}

// firstFree listens on the first of ports that nobody has, or on any that is free.
func firstFree(ports []int, listen func(port int) (*tcpstore.Server, error)) (*tcpstore.Server, error) {
	for _, port := range ports {
		if server, err := listen(port); !errors.Is(err, syscall.EADDRINUSE) {
			return server, err
		}
	}
	return listen(0)
}

func (m *meeting) listen(ips []netip.Addr, port int) (*tcpstore.Server, error) {
	hosts := make([]string, len(ips))
	for i, ip := range ips {
		hosts[i] = ip.String()
	}
	return tcpstore.Listen(tcpstore.ServerConfig{
		Hosts: hosts, Port: port, Private: membership.KeyPrefix, Allow: m.StoreAllow,
		Limits: tcpstore.Limits{Total: m.StoreLimit}, Log: m.log,
	})
}

// Listen binds a store to what host means: an address, or every address of a name. These become cfg.Hosts.
func Listen(ctx context.Context, host string, cfg tcpstore.ServerConfig) (*tcpstore.Server, error) {
	hosts := []string{host}
	switch {
	case host == "localhost":
		hosts = []string{"127.0.0.1"} // clients try ::1 first where the name has it, and come here when it refuses
		if hasIPv6Loopback() {
			hosts = append(hosts, "::1")
		}
	case host != "" && net.ParseIP(host) == nil:
		found, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return nil, errhint.Code(errhint.With(fmt.Errorf("cannot resolve the store's host %q: %w", host, err),
				"on one node name no host for the store: it then listens on 127.0.0.1"), errhint.Usage)
		}
		hosts = found
	}
	cfg.Hosts = hosts
	server, err := tcpstore.Listen(cfg)
	if err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	return server, nil
}

// hasIPv6Loopback reports whether ::1 is an address of this machine.
func hasIPv6Loopback() bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.Equal(net.IPv6loopback) {
			return true
		}
	}
	return false
}

// ParseBind reads the address at which a store listens, HOST:PORT with port 0 for a free one.
func ParseBind(bind string) (host string, port int, err error) {
	host, portText, err := net.SplitHostPort(bind)
	if err != nil {
		return "", 0, errhint.Usagef("--bind %q is not HOST:PORT: %w", bind, err)
	}
	if host == "" {
		return "", 0, errhint.With(errhint.Usagef("--bind %q names no address", bind),
			"127.0.0.1"+bind+" is for this machine, 0.0.0.0"+bind+" for all that reach it")
	}
	number, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return "", 0, errhint.Usagef("--bind %q: the port must be a number from 0 to 65535", bind)
	}
	return host, int(number), nil
}
