package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"muster/internal/accel/nvline"
)

// write writes the report as a table.
func (d *deviceReport) write(w io.Writer, cpusWhy string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	printf := func(format string, args ...any) { fmt.Fprintf(t, format, args...) } //nolint:errcheck // Flush says it
	some := false
	for _, f := range d.Vendors {
		for _, dev := range f.Devices {
			if !some {
				fmt.Fprint(t, factsHead) //nolint:errcheck // Flush says it
				some = true
			}
			remarks := dev.Notes
			if dev.WhyNot != "" {
				remarks = append([]string{"not usable: " + dev.WhyNot}, remarks...)
			}
			if dev.Instances > 0 {
				remarks = append(remarks, strconv.Itoa(dev.Instances)+" MIG instances")
			}
			printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", number(dev.Index), number(dev.Visible), f.Vendor, orDash(dev.Model),
				orDash(dev.BusID),
				orDash(dev.Node), orDash(dev.Driver), orDash(dev.Link), number(dev.NUMANode), strings.Join(remarks, "; "))
		}
	}
	if some {
		printf("\n")
	}
	errs := []error{t.Flush(), d.writeFacts(w)}
	line := func(format string, args ...any) {
		_, err := fmt.Fprintf(w, format+"\n", args...)
		errs = append(errs, err)
	}
	for _, r := range d.Sick {
		what := r.Reason
		if r.Try != "" {
			what += "; try: " + r.Try
		}
		if r.ID != "gpu-driver-hung" { // the line about NVML says it
			line("%v %s: %s", r.Status, strings.TrimSpace(r.ID+" "+r.Subject.String()), what)
		}
	}
	if n := d.NVML; n != nil && n.Degraded != "" {
		line("nvidia: %s", n.Degraded)
	} else if n != nil {
		line("nvidia: driver %s, library %s, CUDA %s (NVML by %s in %d ms)", orDash(n.Driver), orDash(n.Library), orDash(n.CUDA),
			n.Via, n.TookMS)
	}
	for _, f := range d.Vendors {
		for _, why := range f.Why {
			line("%s: %s", f.Vendor, why)
		}
	}
	line("cpu: %s", cpusWhy)
	if d.Auto > 0 {
		line("--nproc-per-node auto: %d (%s)", d.Auto, d.Why)
	} else {
		line("--nproc-per-node auto: %s", d.Why)
	}
	how := map[string][]string{}
	var order []string
	for _, v := range d.Verified {
		if how[v.Verified] == nil {
			order = append(order, v.Verified)
		}
		how[v.Verified] = append(how[v.Verified], v.Vendor)
	}
	for _, by := range order {
		line("detection checked by %s: %s", by, strings.Join(how[by], ", "))
	}
	if d.Fake != "" {
		line("accelerator=fake: all of this is made up by %s", d.Fake)
	}
	return errors.Join(errs...)
}

func number(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

const factsHead = "index\tmemory\tprocesses\tECC errors\trows replaced\tMIG\tNVLinks\theat\tpower\tclocks\tslowed down\n"

// writeFacts writes what NVML tells of each GPU.
func (d *deviceReport) writeFacts(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	some := false
	for _, f := range d.Vendors {
		for _, dev := range f.Devices {
			if dev.NVML == nil {
				continue
			}
			if !some {
				fmt.Fprint(t, factsHead) //nolint:errcheck // Flush says it
				some = true
			}
			fmt.Fprintln(t, strings.Join(append([]string{number(dev.Index)}, facts(dev.NVML)...), "\t")) //nolint:errcheck // Flush says it
		}
	}
	if some {
		fmt.Fprintln(t) //nolint:errcheck // Flush says it
	}
	return t.Flush()
}

// facts are the columns of a GPU, "-" for what is not available.
func facts(g *nvline.GPU) []string {
	if g.RC == nvline.GPULost {
		return []string{"lost"}
	}
	pair := func(now, most *int, scale int, unit string) string {
		if now == nil {
			return "-"
		}
		if most == nil {
			return fmt.Sprintf("%d %s", *now/scale, unit)
		}
		return fmt.Sprintf("%d of %d %s", *now/scale, *most/scale, unit)
	}
	memory, processes, errs, rows, mig, links, clocks, slowed := "-", "-", "-", "-", "-", "-", "-", "-"
	if g.MemUsed != nil && g.MemTotal != nil {
		memory = fmt.Sprintf("%d of %d MiB", *g.MemUsed>>20, *g.MemTotal>>20)
	}
	if g.Processes != nil {
		processes = strconv.Itoa(len(g.Processes))
	}
	switch {
	case g.ECC != nil && !*g.ECC:
		errs = "ECC off"
	case g.ECCVolatile != nil && g.ECCAggregate != nil:
		errs = fmt.Sprintf("%d, ever %d", *g.ECCVolatile, *g.ECCAggregate)
	}
	if r := g.Remapped; r != nil {
		rows = strconv.Itoa(r.Correctable + r.Uncorrectable)
	}
	if g.MIG != nil {
		mig = map[bool]string{true: "on", false: "off"}[*g.MIG]
	}
	if g.NVLink != nil {
		active := 0
		for _, state := range g.NVLink {
			if state == 1 {
				active++
			}
		}
		links = fmt.Sprintf("%d of %d", active, len(g.NVLink))
	}
	if g.ClockSM != nil && g.ClockMem != nil {
		clocks = fmt.Sprintf("%d, %d MHz", *g.ClockSM, *g.ClockMem)
	}
	if g.Clocks != nil {
		slowed = slowness(*g.Clocks)
	}
	return []string{
		memory, processes, errs, rows, mig, links, pair(g.Temperature, g.TempSlow, 1, "°C"),
		pair(g.Power, g.PowerLimit, 1000, "W"), clocks, slowed,
	}
}

// slowness names why a GPU's clocks are not at their highest (nvml.h, nvmlClocksEventReason).
func slowness(reasons uint64) string {
	names := []string{
		"idle", "application clocks", "power cap", "hardware", "sync boost", "heat (driver)", "heat (hardware)",
		"power brake", "display",
	}
	var said []string
	for i, name := range names {
		if reasons>>i&1 != 0 {
			said = append(said, name)
		}
	}
	if said == nil {
		return "no"
	}
	return strings.Join(said, ", ")
}
