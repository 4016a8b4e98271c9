package devicecheck

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strconv"
	"time"
)

// DeviceResult is what one device can do by itself.
type DeviceResult struct {
	Local   int
	Kind    string // cuda, ..., cpu
	Model   string
	Backend string        // of collectives
	Torch   string        // version
	Import  time.Duration // from the start of Python's program until torch was imported
	Matmul  Matmul
	// ToDevice and FromDevice are MB/s of copies between device and host, of 10^6 bytes; of a CPU those of memory.
	ToDevice, FromDevice float64
	// AllReduce is a sum over the devices of this node; nil where there is one.
	AllReduce *Sum
}

// Matmul is the time of one product of square matrices.
type Matmul struct {
	Size         int    // of the matrices
	Type         string // of their numbers
	Count        int    // products that were measured
	Best, Median time.Duration
}

// TFLOPS is the speed of the median product, in 10^12 operations a second.
func (m Matmul) TFLOPS() float64 {
	if m.Median <= 0 {
		return 0
	}
	return 2 * math.Pow(float64(m.Size), 3) / m.Median.Seconds() / 1e12
}

// Sum is an all-reduce of one size. Median and Best are the slowest rank's, and the same on all ranks.
type Sum struct {
	Bytes        int64
	World        int // devices
	Median, Best time.Duration
}

// AlgMBps is size by time, in MB/s of 10^6 bytes.
func (s Sum) AlgMBps() float64 {
	if s.Median <= 0 {
		return 0
	}
	return float64(s.Bytes) / s.Median.Seconds() / 1e6
}

// BusMBps is what a link carries at that speed, by which groups of different size compare: 2(n-1)/n of AlgMBps.
func (s Sum) BusMBps() float64 {
	if s.World < 1 {
		return 0
	}
	return s.AlgMBps() * 2 * float64(s.World-1) / float64(s.World)
}

// Group is devices of one or several nodes that sum together. Each node's program is given its own FirstRank; the rest
// is the same for all of them.
type Group struct {
	// Name is another one for every group that met at the same store.
	Name string
	// Store is the host:port of the store that the first node's program serves.
	Store string
	// FirstRank is the rank of this node's device 0; World the number of devices in the group.
	FirstRank, World int
}

// How much is summed, in bytes: on an accelerator as DLRover does, on a CPU what takes a healthy pair a fraction of a
// second.
const (
	sumBytes    = 64 << 20
	cpuSumBytes = 4 << 20
)

// How long measures take at most, if a single one does not take longer. Those of rank 0 count for all devices of a
// group.
const (
	localTime = time.Second
	sumTime   = time.Second
	perfTime  = 40 * time.Second // if that is not more than perfPart of the budget
	perfPart  = 0.3
)

// Local tests each device by itself, then all of them together. Of devices that failed there is no result; the error
// holds a *DeviceError for each.
func (c *Program) Local(ctx context.Context) ([]DeviceResult, error) {
	const stage = "local"
	out, err := c.repeated(ctx, func() ([]outcome, error) { return c.local(ctx, stage) })
	if err != nil {
		return nil, err
	}
	var results []DeviceResult
	for local := range out {
		var a localAnswer
		if !c.result(&out[local], stage, local, &a) {
			continue
		}
		h := out[local].hello
		r := DeviceResult{
			Local: local, Kind: h.Device, Model: h.Model, Backend: h.Backend, Torch: h.Torch, Import: ms(h.ImportMS),
			Matmul: Matmul{
				Size: a.Matmul.N, Type: a.Matmul.DType, Count: a.Matmul.Count,
				Best: ms(a.Matmul.BestMS), Median: ms(a.Matmul.MedianMS),
			},
			ToDevice: a.ToDevice, FromDevice: a.FromDevice,
		}
		if a.AllReduce != nil {
			sum := a.AllReduce.sum(c.cfg.Devices)
			r.AllReduce = &sum
		}
		results = append(results, r)
	}
	return results, all(out)
}

func (c *Program) local(ctx context.Context, stage string) ([]outcome, error) {
	var group *Group
	if c.cfg.Devices > 1 {
		port, err := c.Serve(ctx)
		if err != nil {
			return nil, err
		}
		group = &Group{
			Name: "local/" + strconv.FormatUint(c.groups.Add(1), 10), Store: net.JoinHostPort("localhost", strconv.Itoa(port)),
			World: c.cfg.Devices,
		}
	}
	return c.command(ctx, stage, c.cfg.Devices, group, func(local int, h hello) order {
		o := order{Do: "local", Seconds: localTime.Seconds()}
		if group != nil {
			o = group.order(local, o, bytesOf(h, 0))
			o.Group.Loopback = true
		}
		return o
	})
}

// Ready waits until every process has imported torch. Errors are those of Pair.
func (c *Program) Ready(ctx context.Context) error {
	out, err := c.repeated(ctx, func() ([]outcome, error) { return c.command(ctx, "start", c.cfg.Devices, nil, nil) })
	if err != nil {
		return err
	}
	return first(out)
}

// Serve has device 0 serve a store, at all addresses of this node, and returns its port. The store lasts as long as
// that process, so ask before each group: where the process had to be replaced, the port is another one.
func (c *Program) Serve(ctx context.Context) (port int, err error) {
	const stage = "store"
	out, err := c.repeated(ctx, func() ([]outcome, error) {
		return c.command(ctx, stage, 1, nil, func(int, hello) order { return order{Do: "serve"} })
	})
	if err != nil {
		return 0, err
	}
	var a serveAnswer
	c.result(&out[0], stage, 0, &a)
	return a.Port, first(out)
}

// Pair sums bytes over the devices of a group, 0 for as many as its kind of device takes, and verifies the sums. An
// error is a *DeviceError, the one nearest to the root where several devices of this node failed.
func (c *Program) Pair(ctx context.Context, g Group, bytes int64) (Sum, error) {
	sums, err := c.sum(ctx, "pair", g, func(h hello) []int64 { return []int64{bytesOf(h, bytes)} }, sumTime)
	if err != nil {
		return Sum{}, err
	}
	return sums[0], nil
}

// CommPerf sums each of sizes over the devices of a group; none stands for 1 MiB to 1 GiB by powers of two, up to 64
// MiB on CPUs. Sizes that would take the whole beyond 40 s, or a third of the budget, are left out. Errors are those of
// Pair.
func (c *Program) CommPerf(ctx context.Context, g Group, sizes []int64) ([]Sum, error) {
	total := min(perfTime, time.Duration(perfPart*float64(c.cfg.Budget)))
	return c.sum(ctx, "comm-perf", g, func(h hello) []int64 {
		if len(sizes) > 0 {
			return sizes
		}
		largest := int64(1 << 30)
		if h.Device == "cpu" {
			largest = 64 << 20
		}
		var all []int64
		for size := int64(1 << 20); size <= largest; size *= 2 {
			all = append(all, size)
		}
		return all
	}, total)
}

func (c *Program) sum(ctx context.Context, stage string, g Group, sizes func(hello) []int64, total time.Duration) ([]Sum, error) {
	out, err := c.command(ctx, stage, c.cfg.Devices, &g, func(local int, h hello) order {
		return g.order(local, order{Do: "pair", Seconds: min(sumTime, total).Seconds(), TotalSeconds: total.Seconds()}, sizes(h)...)
	})
	if err != nil {
		return nil, err
	}
	var a pairAnswer
	for local := range out {
		if c.result(&out[local], stage, local, &a) && len(a.Rows) == 0 {
			out[local].err = &DeviceError{Local: local, Stage: stage, Cause: Garbled, Text: "it measured nothing"}
		}
	}
	if err := first(out); err != nil {
		return nil, err
	}
	sums := make([]Sum, len(a.Rows))
	for i, row := range a.Rows {
		sums[i] = row.sum(g.World)
	}
	return sums, nil
}

// DLRover does what agents of DLRover do with a group of nodes, and returns the time by which their master compares
// nodes. The group meets at a store that the process with rank 0 serves at Group.Store. Errors are those of Pair.
func (c *Program) DLRover(ctx context.Context, g Group) (took float64, err error) {
	const stage = "dlrover"
	out, err := c.command(ctx, stage, c.cfg.Devices, nil, func(local int, _ hello) order {
		return g.order(local, order{Do: "dlrover"})
	})
	if err != nil {
		return 0, err
	}
	for local := range out {
		var a dlroverAnswer
		if c.result(&out[local], stage, local, &a) {
			took = max(took, a.Took)
		}
	}
	return took, first(out)
}

// order completes the order to a local rank.
func (g Group) order(local int, o order, sizes ...int64) order {
	o.Group = &orderGroup{Name: g.Name, Store: g.Store, Rank: g.FirstRank + local, World: g.World}
	o.Sizes = sizes
	if o.TotalSeconds == 0 {
		o.TotalSeconds = sumTime.Seconds()
	}
	return o
}

// result reads what an outcome holds into a, and notes what it cannot be.
func (c *Program) result(out *outcome, stage string, local int, a any) bool {
	if out.err != nil {
		return false
	}
	if err := json.Unmarshal(out.done.Result, a); err != nil {
		out.err = &DeviceError{Local: local, Stage: stage, Cause: Garbled, Text: fmt.Sprintf("%v: %s", errGarbled, quote(out.done.Result))}
		return false
	}
	return true
}

func (r rowAnswer) sum(world int) Sum {
	return Sum{Bytes: r.Bytes, World: world, Median: ms(r.MS), Best: ms(r.BestMS)}
}

// bytesOf is how much is summed where bytes says so, or by default.
func bytesOf(h hello, bytes int64) int64 {
	switch {
	case bytes > 0:
		return bytes
	case h.Device == "cpu":
		return cpuSumBytes
	default:
		return sumBytes
	}
}

func ms(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
