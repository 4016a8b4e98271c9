package health

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/accel"
	"muster/internal/accel/nvline"
	"muster/internal/check"
)

// nvlinkDown: machines use different numbers of a GPU's links, so that an inactive one says something only where
// another GPU has the same one active.
func nvlinkDown(n *Node) []check.Result {
	return n.eachGPU("nvlink-down", "reset the GPU; on machines with NVSwitches see the fabric manager's log",
		func(g *gpu, r *check.Result) string {
			if len(g.NVLink) == 0 {
				return g.noLinks()
			}
			var down []string
			for i, state := range g.NVLink {
				if state == 0 &&
					slices.ContainsFunc(n.NVML.GPUs, func(o nvline.GPU) bool { return i < len(o.NVLink) && o.NVLink[i] == 1 }) {
					down = append(down, strconv.Itoa(i))
				}
			}
			if down != nil {
				r.Reason = fmt.Sprintf("link %s of %d: inactive here, and active on other GPUs", strings.Join(down, ", "), len(g.NVLink))
				r.Value, r.Limit = strconv.Itoa(len(g.NVLink)-len(down)), strconv.Itoa(len(g.NVLink))
			}
			return ""
		})
}

// noLinks says why a GPU shows no NVLink.
func (g *gpu) noLinks() string {
	if why := g.na("nvlink"); why != "the driver does not tell" {
		return why
	}
	return "it has no NVLink"
}

// nvlinkNone: GPUs with NVLinks of which no two reach each other by them, which is what a fabric manager that does not
// run looks like. One unanswered pair is enough not to judge.
func nvlinkNone(n *Node) []check.Result {
	const id = "nvlink-none"
	if why := n.noNVML(); why != "" {
		return skip(id, why)
	}
	linked := 0
	answers := 0
	for _, g := range n.gpus {
		if g.GPU == nil {
			return skip(id, "NVML did not tell of each GPU")
		}
		if len(g.NVLink) == 0 {
			continue
		}
		linked++
		for _, o := range n.gpus {
			if o.GPU == nil || o.Index >= g.Index || len(o.NVLink) == 0 {
				continue
			}
			if o.Index >= len(g.P2P) || g.P2P[o.Index] < 0 || g.P2P[o.Index] == 6 {
				return skip(id, "NVML does not tell of each pair")
			}
			if g.P2P[o.Index] == 0 {
				return pass(id)
			}
			answers++
		}
	}
	if linked < 2 {
		return skip(id, "fewer than two GPUs have NVLinks")
	}
	r := bad(id, fmt.Sprintf("none of %d pairs can talk over NVLink", answers),
		"is the fabric manager running, and of the driver's version?")
	r.Source = "L1"
	return []check.Result{r}
}

// grown returns by how much a counter has grown between the first and the last reading, and in what time.
func (g *gpu) grown(value func(nvline.Sample) (uint64, bool)) (by uint64, in time.Duration, known bool) {
	var first, last *uint64
	var begin time.Duration
	for _, m := range g.n.NVML.Moments {
		v, ok := value(m.GPUs[g.Index])
		if !ok {
			continue
		}
		if first == nil {
			first, begin = &v, m.At
		}
		last, in = &v, m.At-begin
	}
	if first == nil || in <= 0 || *last < *first { // a counter that was reset meanwhile tells nothing
		return 0, 0, false
	}
	return *last - *first, in, true
}

func counter(p *uint64) (uint64, bool) {
	if p == nil {
		return 0, false
	}
	return *p, true
}

const oneReading = "its counters were read once, and only their growth tells"

// nvlinkErrors: links repeat what arrived damaged. DCGM fails above 100 CRC errors a second.
func nvlinkErrors(n *Node) []check.Result {
	limit := float64(n.Policy.Limit("nvlink-errors"))
	return n.eachGPU("nvlink-errors", "reseat the GPU or its bridge", func(g *gpu, r *check.Result) string {
		if len(g.NVLink) == 0 {
			return g.noLinks()
		}
		crc, in, known := g.grown(func(s nvline.Sample) (uint64, bool) { return counter(s.NVLinkCRC) })
		replays, _, knownReplays := g.grown(func(s nvline.Sample) (uint64, bool) { return counter(s.NVLinkReplay) })
		recoveries, _, knownRecoveries := g.grown(func(s nvline.Sample) (uint64, bool) { return counter(s.NVLinkRecover) })
		switch {
		case !known && !knownReplays && !knownRecoveries:
			return oneReading
		case crc+replays+recoveries == 0:
			return ""
		}
		r.Reason = fmt.Sprintf("its NVLinks made %d CRC errors, %d replays and %d recoveries in %v", crc, replays, recoveries,
			in.Round(time.Millisecond))
		if known {
			rate := float64(crc) / in.Seconds()
			r.Value, r.Limit = fmt.Sprintf("%.1f", rate), fmt.Sprint(limit)
			if rate > limit {
				r.Status = check.Fail
			}
		}
		return ""
	})
}

// fabricNotReady: on machines with NVSwitches a GPU computes alone until the fabric manager has taken it in.
func fabricNotReady(n *Node) []check.Result {
	states := map[int]string{1: "not started", 2: "in progress"}
	// Two bits each, where 1 means that it is so; 0 is not supported and 2 that it is not.
	degraded := []struct {
		shift uint
		what  string
	}{{0, "its bandwidth is degraded"}, {4, "a route is unhealthy"}}
	return n.eachGPU("fabric-not-ready", "is the fabric manager running, and of the driver's version?",
		func(g *gpu, r *check.Result) string {
			switch {
			case g.Fabric == nil:
				return g.na("fabric")
			case g.Fabric.State == 0:
				return "the machine has no fabric of NVSwitches"
			case g.Fabric.State != 3:
				r.Reason = "joining the fabric is " + orNumber(states[g.Fabric.State], g.Fabric.State)
			case g.Fabric.Status != 0:
				r.Reason = fmt.Sprintf("joining the fabric has failed (return code %d)", g.Fabric.Status)
			}
			for _, d := range degraded {
				if g.Fabric.Health>>d.shift&3 == 1 {
					r.Reason = strings.TrimPrefix(r.Reason+", "+d.what, ", ")
				}
			}
			return ""
		})
}

func orNumber(text string, n int) string {
	if text == "" {
		return fmt.Sprintf("in state %d", n)
	}
	return text
}

// pcieWidth: the link runs on fewer lanes than the card can; less than half of them is a failure.
func pcieWidth(n *Node) []check.Result {
	return n.eachDevice("pcie-width", "reseat the card or its riser", func(d accel.Device, r *check.Result) {
		now, most, known := n.lanes(d)
		if !known || now >= most {
			return
		}
		r.Reason = fmt.Sprintf("%d of %d lanes", now, most)
		r.Value, r.Limit = strconv.Itoa(now), strconv.Itoa(most)
		if 2*now < most {
			r.Status = check.Fail
		}
	})
}

// lanes returns the width of a device's PCI link, as it is and as it could be.
func (n *Node) lanes(d accel.Device) (now, most int, known bool) {
	if d.BusID == "" {
		return 0, 0, false
	}
	dir := path.Join("sys/bus/pci/devices", d.BusID)
	now, most = n.number(path.Join(dir, "current_link_width")), n.number(path.Join(dir, "max_link_width"))
	return now, most, now > 0 && most > 0 && most < 255 // 255: the kernel does not know
}

// pcieSpeed: the links of idle GPUs sleep at a lower speed, so that only a busy GPU's slow link says something. Whether
// it is busy NVML tells (bit 0x1 of the reasons of its clocks: idle).
func pcieSpeed(n *Node) []check.Result {
	return n.eachGPU("pcie-speed", "reseat the card or its riser", func(g *gpu, r *check.Result) string {
		now, most, known := n.speeds(g)
		switch {
		case !known:
			return "the speed of its link is not known"
		case now >= most:
			return ""
		case g.Clocks == nil:
			return "its link is slow, and whether it sleeps is not known"
		case *g.Clocks&1 != 0:
			return "it is idle, and so its link sleeps"
		}
		r.Reason = fmt.Sprintf("%g of %g GT/s while it works", now, most)
		r.Value, r.Limit = fmt.Sprint(now), fmt.Sprint(most)
		return ""
	})
}

// speeds returns the speed of a GPU's PCI link in GT/s, as it is and as it could be.
func (n *Node) speeds(g *gpu) (now, most float64, known bool) {
	read := func(name string) float64 {
		text, err := fs.ReadFile(n.Root, path.Join("sys/bus/pci/devices", g.dev.BusID, name))
		word, _, _ := strings.Cut(string(text), " ") // "16.0 GT/s PCIe"
		v, err2 := strconv.ParseFloat(word, 64)
		if err != nil || err2 != nil {
			return 0
		}
		return v
	}
	if g.dev.BusID != "" {
		now, most = read("current_link_speed"), read("max_link_speed")
	}
	return now, most, now > 0 && most > 0
}

// replayRate is how many repetitions a minute and lane a bit error rate of 10^-12 explains, by generation (DCGM).
var replayRate = map[int]float64{3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}

func pcieReplay(n *Node) []check.Result {
	return n.eachGPU("pcie-replay", "reseat the card or its riser", func(g *gpu, r *check.Result) string {
		by, in, known := g.grown(func(s nvline.Sample) (uint64, bool) {
			if s.PCIeReplays == nil || *s.PCIeReplays < 0 {
				return 0, false
			}
			return uint64(*s.PCIeReplays), true
		})
		if !known {
			return oneReading
		}
		gen, lanes := 3, 16 // the strictest that is in use
		if g.PCIeGenMax != nil {
			gen = max(3, min(*g.PCIeGenMax, 6))
		}
		if g.PCIeWidth != nil {
			lanes = *g.PCIeWidth
		}
		most := uint64(math.Ceil(replayRate[gen] * float64(lanes) * in.Minutes()))
		if by > most {
			r.Reason = fmt.Sprintf("its PCIe link repeated %d packets in %v", by, in.Round(time.Millisecond))
			r.Value, r.Limit = fmt.Sprint(by), fmt.Sprint(most)
		}
		return ""
	})
}
