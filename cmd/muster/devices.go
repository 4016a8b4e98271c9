package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"muster/internal/accel"
)

// newDevicesCmd is "muster devices": what accelerators are here.
func newDevicesCmd(a *app) *cobra.Command {
	var f acceleratorFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devices [--json] [--accelerator fake:FILE]",
		Short: "Show this node's accelerators, and what a worker sees of them",
		Long: `Show this node's accelerators: which there are, which this process may use, which a
worker sees under the visibility variables that are set, and how many workers
--nproc-per-node auto starts.

It reads files in /proc, /sys and the presence of device nodes. It loads no library,
opens no device and cannot hang.`,
		Example:     "  muster devices\n  CUDA_VISIBLE_DEVICES=0,3 muster devices --json\n  muster devices --accelerator fake:gpus.yaml",
		Annotations: map[string]string{exitAnnotation: "  0    shown, also where there is none\n  2    usage error, or the spec cannot be used\n  125  internal error of muster\n"},
		Args:        cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.showDevices(f, asJSON)
		},
	}
	f.add(cmd.Flags(), a)
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

func (a *app) showDevices(f acceleratorFlags, asJSON bool) error {
	here, err := f.look(a)
	if err != nil {
		return err
	}
	cpus, cpusWhy := accel.CPUs(here.root)
	n, why, err := accel.Workers("auto", here.inv, cpus)
	d := deviceReport{Node: here.host, Fake: here.inv.Fake, CPUs: cpus, Auto: n, Why: why}
	if err != nil {
		d.Why = err.Error()
	}
	for _, f := range here.inv.Families {
		d.Vendors = append(d.Vendors, familyReport(f))
	}
	for _, v := range accel.Vendors() {
		d.Verified = append(d.Verified, vendorReport{v.Name, v.Backend, v.Verified})
	}
	if asJSON {
		return writeJSON(a.stdout, d)
	}
	return d.write(a.stdout, cpusWhy)
}

// deviceReport is what muster devices --json writes.
type deviceReport struct {
	Node string `json:"node"`
	Fake string `json:"fake,omitempty"` // path of the spec
	CPUs int    `json:"cpus"`
	// Auto is how many workers --nproc-per-node auto starts, 0 where that cannot be told; Why says how it was decided.
	Auto     int               `json:"auto"`
	Why      string            `json:"why"`
	Vendors  []familyOfDevices `json:"vendors"`
	Verified []vendorReport    `json:"detection"`
}

type vendorReport struct {
	Vendor   string `json:"vendor"`
	Backend  string `json:"backend"`
	Verified string `json:"verified"` // how detection was checked
}

type familyOfDevices struct {
	Vendor    string         `json:"vendor"`
	Backend   string         `json:"backend"`
	Visible   int            `json:"visible"`
	Undecided string         `json:"undecided,omitempty"`
	Why       []string       `json:"why,omitempty"`
	Devices   []deviceOfNode `json:"devices"`
}

type deviceOfNode struct {
	Index     *int     `json:"index"`   // null where it may not be used
	Visible   *int     `json:"visible"` // by which number a worker knows it; null where it does not
	Model     string   `json:"model,omitempty"`
	UUID      string   `json:"uuid,omitempty"`
	BusID     string   `json:"bdf,omitempty"`
	Node      string   `json:"node,omitempty"`
	Driver    string   `json:"driver,omitempty"`
	NUMANode  *int     `json:"numa,omitempty"`
	LocalCPUs string   `json:"cpus,omitempty"`
	Instances int      `json:"mig_instances,omitempty"`
	WhyNot    string   `json:"why_not,omitempty"`
	Notes     []string `json:"notes,omitempty"`
}

func familyReport(f accel.Family) familyOfDevices {
	r := familyOfDevices{Vendor: f.Vendor, Backend: f.Backend, Visible: f.VisibleCount, Why: f.Why, Devices: []deviceOfNode{}}
	if f.Undecided != nil {
		r.Undecided = f.Undecided.Error()
	}
	for _, list := range [][]accel.Device{f.Devices, f.Unusable} {
		for _, d := range list {
			r.Devices = append(r.Devices, deviceOfNode{
				Index: known(d.Index), Visible: known(d.VisibleIndex), Model: d.Model, UUID: d.UUID, BusID: d.BusID, Node: d.Node,
				Driver: d.Driver, NUMANode: known(d.NUMANode), LocalCPUs: d.LocalCPUs, Instances: len(d.Instances), WhyNot: d.WhyNot, Notes: d.Notes,
			})
		}
	}
	return r
}

// known is a number, nil for -1.
func known(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

// write writes the report as a table.
func (d *deviceReport) write(w io.Writer, cpusWhy string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	printf := func(format string, args ...any) { fmt.Fprintf(t, format, args...) } //nolint:errcheck // Flush says it
	some := false
	for _, f := range d.Vendors {
		for _, dev := range f.Devices {
			if !some {
				printf("index\tworker\tvendor\tmodel\taddress\tdevice\tdriver\tnuma\tremarks\n")
				some = true
			}
			remarks := dev.Notes
			if dev.WhyNot != "" {
				remarks = append([]string{"not usable: " + dev.WhyNot}, remarks...)
			}
			if dev.Instances > 0 {
				remarks = append(remarks, strconv.Itoa(dev.Instances)+" MIG instances")
			}
			printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", number(dev.Index), number(dev.Visible), f.Vendor, orDash(dev.Model), orDash(dev.BusID),
				orDash(dev.Node), orDash(dev.Driver), number(dev.NUMANode), strings.Join(remarks, "; "))
		}
	}
	if some {
		printf("\n")
	}
	errs := []error{t.Flush()}
	line := func(format string, args ...any) {
		_, err := fmt.Fprintf(w, format+"\n", args...)
		errs = append(errs, err)
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
