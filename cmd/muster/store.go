package main

import (
	"cmp"
	"context"
	"net/netip"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/launch"
	"muster/rendezvous/membership"
	"muster/rendezvous/place"
	"muster/rendezvous/tcpstore"
)

// newStoreCmd is "muster store": a TCPStore on its own, until a signal.
func newStoreCmd(a *app) *cobra.Command {
	var bind, allow, limit string
	cmd := &cobra.Command{
		Use:   "store --bind HOST:PORT [--store-allow CIDR,...] [--store-limit SIZE]",
		Short: "Serve a PyTorch-compatible TCPStore",
		Long: `Serve a PyTorch-compatible TCPStore until SIGTERM or SIGINT.

Clients of every PyTorch since 1.9 can use it. It prints the addresses it listens on,
one line each, once it answers. Nobody is authenticated: bind an address that only
the job's machines reach, or name their networks with --store-allow. Who comes from
elsewhere is closed at once, and named in the log once a minute. Loopback counts as a
network like any other: add 127.0.0.0/8 for clients on this machine.

It holds at most --store-limit bytes: a client that would add more is closed, and named
in the log. A client that says nothing for 10 s is closed, too.`,
		Example: "  muster store --bind 127.0.0.1:29400\n  muster store --bind 10.0.0.1:29400 --store-allow 10.0.0.0/16,127.0.0.0/8",
		Annotations: map[string]string{exitAnnotation: "  0    stopped by a signal\n  2    usage error, or the address cannot be bound\n" +
			"  125  internal error of muster\n"},
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			name := "--store-allow"
			if !cmd.Flags().Changed("store-allow") {
				name = "MUSTER_STORE_ALLOW"
			}
			var networks []netip.Prefix
			if allow != "" {
				var err error
				if networks, err = dialect.ParseNetworks(allow); err != nil {
					return errhint.Usagef("%s: %w", name, err)
				}
			}
			most, err := dialect.ParseStoreLimit(limit)
			if err != nil {
				name := "--store-limit"
				if !cmd.Flags().Changed("store-limit") {
					name = "MUSTER_STORE_LIMIT"
				}
				return errhint.Usagef("cannot use %s %s: %w", name, limit, err)
			}
			return a.serveStore(cmd.Context(), bind,
				tcpstore.ServerConfig{Private: membership.KeyPrefix, Allow: networks, Limits: tcpstore.Limits{Total: most}})
		},
	}
	cmd.Flags().StringVar(&bind, "bind", cmp.Or(a.here.Getenv("MUSTER_BIND"), "127.0.0.1:29400"),
		"address to listen on; port 0 takes a free one [MUSTER_BIND]")
	cmd.Flags().StringVar(&allow, "store-allow", a.here.Getenv("MUSTER_STORE_ALLOW"),
		"networks whose clients are served, as ADDRESS/BITS with commas between; empty: all [MUSTER_STORE_ALLOW]")
	cmd.Flag("store-allow").Annotations = map[string][]string{emptyAnnotation: nil}
	cmd.Flags().StringVar(&limit, "store-limit", cmp.Or(a.here.Getenv("MUSTER_STORE_LIMIT"), "0"),
		"how many bytes it holds at most, such as 4GiB; 0: 1 GiB, or a quarter of the machine's memory where that is less "+
			"[MUSTER_STORE_LIMIT]")
	return cmd
}

func (a *app) serveStore(ctx context.Context, bind string, cfg tcpstore.ServerConfig) error {
	host, port, err := place.ParseBind(bind)
	if err != nil {
		return err
	}
	ctx, in := launch.WatchSignals(ctx, []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}, 0)
	defer in.Close()
	cfg.Port, cfg.Log = port, a.console.Logger(zerolog.WarnLevel)
	server, err := place.Listen(ctx, host, cfg)
	if err != nil {
		return err
	}
	for _, addr := range server.Addrs() {
		say(a.stdout, "%s\n", addr)
	}
	<-ctx.Done()
	return server.Close()
}
