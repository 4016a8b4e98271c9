package hosts

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"muster/horovod"
	"muster/horovod/elastic"
	"muster/horovod/kv"
	"muster/internal/errhint"
	"muster/internal/hostaddr"
	"muster/launch/job"
)

// ifaceVars are the variables by which Horovod's workers learn their host's network interface.
var ifaceVars = []string{"HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"}

// worldServer is the rendezvous of a Horovod job whose world does not change.
type worldServer struct {
	stop    context.CancelFunc
	served  sync.WaitGroup
	vars    []job.Var // that its workers find it by
	clients *kv.Clients
}

// serveWorld serves the rendezvous of a world at an address of this machine that its hosts reach, and to them alone.
func serveWorld(ctx context.Context, addr string, slots []horovod.Slot, clients *kv.Clients, log zerolog.Logger) (*worldServer, error) {
	if ip, err := netip.ParseAddr(addr); err != nil || !ip.Unmap().Is4() {
		return nil, errhint.With(errhint.Usagef("cannot serve the rendezvous of Horovod's workers at %s: they speak IPv4 only", addr),
			"name the hosts so that they are reached by IPv4")
	}
	l, err := kv.Listen(ctx, addr, 0)
	if err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	server := kv.New(nil)
	server.Only(clients)
	server.Begin(horovod.Scopes(slots))
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	w := &worldServer{stop: stop, clients: clients, vars: horovodVars(elastic.Env(addr, portOf(l.Addr())))}
	w.served.Go(func() {
		if err := server.Serve(ctx, l); err != nil {
			log.Error().Err(err).Msg("the rendezvous of the workers has ended")
		}
	})
	return w, nil
}

// close ends the rendezvous. A nil server is none.
func (w *worldServer) close() {
	if w != nil {
		w.stop()
		w.served.Wait()
	}
}

// cameFrom are the addresses that connections of a machine may come from: those that its agent has told, and those by
// which the machine was reached. away says that it is not this one, whose loopback is another.
func cameFrom(ctx context.Context, name string, h Hello, away bool) []netip.Addr {
	addrs := slices.Clone(h.Addrs)
	for _, text := range []string{h.Addr, h.Own} {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, namesPatience)
	defer cancel()
	if named, _, err := hostaddr.Ours(ctx, name); err == nil {
		addrs = append(addrs, named...)
	}
	if away {
		return slices.DeleteFunc(addrs, netip.Addr.IsLoopback)
	}
	return append(addrs, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

// whoseOn asks a machine's agent whose process there a connection is. This machine's own kernel is asked without one.
func whoseOn(fleet *Fleet, machine int, away bool) kv.Whose {
	if !away {
		return nil
	}
	return func(ctx context.Context, from, to netip.AddrPort) (bool, error) {
		return fleet.Ours(ctx, machine, from, to)
	}
}

func portOf(addr net.Addr) string { return strconv.Itoa(addr.(*net.TCPAddr).Port) }

// horovodVars makes variables of "NAME=VALUE" that Horovod's workers learn their world by.
func horovodVars(list []string) []job.Var {
	vars := make([]job.Var, len(list))
	for i, kv := range list {
		name, value, _ := strings.Cut(kv, "=")
		vars[i] = job.Var{Name: name, Value: value, Source: job.Source{Kind: job.FromMuster, Name: "Horovod's rendezvous"}}
	}
	return vars
}

// ifaceOf are the variables about the network interface that has an address of this machine.
func ifaceOf(ctx context.Context, addr string, names []string) ([]job.Var, error) {
	if len(names) == 0 {
		return nil, nil
	}
	iface, err := hostaddr.InterfaceWith(ctx, addr)
	if err != nil {
		return nil,
			errhint.With(errhint.Usagef("cannot tell the network interface for Horovod: %w", err), "name it with --network-interfaces")
	}
	vars := make([]job.Var, len(names))
	for i, name := range names {
		vars[i] = job.Var{
			Name: name, Value: iface,
			Source: job.Source{Kind: job.FromMuster, Name: "the interface by which the other hosts reach this one"},
		}
	}
	return vars, nil
}
