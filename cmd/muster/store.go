package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/rendezvous/tcpstore"
)

// newStoreCmd is "muster store": a TCPStore on its own, until a signal.
func newStoreCmd(a *app) *cobra.Command {
	var bind string
	cmd := &cobra.Command{
		Use:   "store --bind HOST:PORT",
		Short: "Serve a PyTorch-compatible TCPStore",
		Long: `Serve a PyTorch-compatible TCPStore until SIGTERM or SIGINT.

Clients of every PyTorch since 1.9 can use it. It prints the addresses it listens on,
one line each, once it answers. Nobody is authenticated: bind an address that only
the job's machines reach.`,
		Example:     "  muster store --bind 127.0.0.1:29400",
		Annotations: map[string]string{exitAnnotation: "  0    stopped by a signal\n  2    usage error, or the address cannot be bound\n  125  internal error of muster\n"},
		Args:        cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.serveStore(cmd.Context(), bind)
		},
	}
	cmd.Flags().StringVar(&bind, "bind", cmp.Or(a.getenv("MUSTER_BIND"), "127.0.0.1:29400"), "address to listen on; port 0 takes a free one [MUSTER_BIND]")
	return cmd
}

func (a *app) serveStore(ctx context.Context, bind string) error {
	host, portText, err := net.SplitHostPort(bind)
	if err != nil {
		return errhint.Usagef("--bind %q is not HOST:PORT: %w", bind, err)
	}
	if host == "" {
		return errhint.With(errhint.Usagef("--bind %q names no address", bind), "127.0.0.1"+bind+" is for this machine, 0.0.0.0"+bind+" for all that reach it")
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return errhint.Usagef("--bind %q: the port must be a number from 0 to 65535", bind)
	}
	ctx, in := watchSignals(ctx, []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP})
	defer in.close()
	server, err := listenStore(ctx, host, int(port), a.logger(zerolog.WarnLevel))
	if err != nil {
		return err
	}
	for _, addr := range server.Addrs() {
		say(a.stdout, "%s\n", addr)
	}
	<-ctx.Done()
	return server.Close()
}

// listenStore binds the store to what host means: an address, or every address of a name.
func listenStore(ctx context.Context, host string, port int, log zerolog.Logger) (*tcpstore.Server, error) {
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
				"on one node leave --master-addr and --rdzv-endpoint out: the store then listens on 127.0.0.1"), errhint.Usage)
		}
		hosts = found
	}
	server, err := tcpstore.Listen(tcpstore.ServerConfig{Hosts: hosts, Port: port, Log: log})
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
