package health

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"muster/internal/accel"
	"muster/internal/check"
	"muster/internal/lazyregexp"
)

// Products by a word of their names. NVML answers "success" for rows on cards that replace none (gpud), and consumer
// cards come with ECC off.
var (
	remapModels = []string{"A10", "A100", "A800", "H100", "H800", "H200", "H20", "GH200", "B100", "B200", "B300", "GB200", "GB300"}
	eccModels   = append([]string{
		"A2", "A16", "A30", "A40", "A10G", "L4", "L40", "L40S", "T4", "P4", "P40", "P100", "V100", "V100S",
	}, remapModels...)
)

// is reports whether one of words is in the GPU's name.
func (g *gpu) is(words []string) bool {
	name := g.Name
	if name == "" {
		name = g.dev.Model
	}
	return slices.ContainsFunc(strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }),
		func(word string) bool { return slices.Contains(words, word) })
}

func (g *gpu) remaps() bool {
	if own := g.n.Policy.RemapModels; own != nil {
		return g.is(own)
	}
	return g.is(remapModels)
}

// counted judges a counter that must not exceed the check's limit.
func (n *Node) counted(r *check.Result, count uint64, what string) {
	if limit := n.Policy.Limit(r.ID); count > uint64(limit) {
		r.Reason = fmt.Sprintf("%d %s", count, what)
		r.Value, r.Limit = fmt.Sprint(count), fmt.Sprint(limit)
	}
}

// eccUncorrectable: a double-bit error has killed a process or will; DCGM fails a GPU for one. For AMD it is what the
// driver's RAS counts, for MetaX its tool.
func eccUncorrectable(n *Node) []check.Result {
	const id, what = "ecc-uncorrectable", "uncorrected errors since the driver was loaded"
	results := n.eachGPU(id, "reset the GPU, and replace it if they come back", func(g *gpu, r *check.Result) string {
		if g.ECCVolatile == nil {
			return g.na("ecc_volatile")
		}
		n.counted(r, *g.ECCVolatile, what)
		return ""
	})
	return n.withOthers(results, n.amdErrors(id, what), n.metaxErrors(id, what))
}

func eccAggregate(n *Node) []check.Result {
	return n.eachGPU("ecc-aggregate", "watch it: a GPU with more of them every week is to be replaced",
		func(g *gpu, r *check.Result) string {
			if g.ECCAggregate == nil {
				return g.na("ecc_aggregate")
			}
			n.counted(r, *g.ECCAggregate, "uncorrected errors in its life")
			return ""
		})
}

func eccOff(n *Node) []check.Result {
	models := eccModels
	if own := n.Policy.ECCModels; own != nil {
		models = own
	}
	return n.eachGPU("ecc-off", "nvidia-smi -e 1, then a reboot", func(g *gpu, r *check.Result) string {
		switch {
		case !g.is(models):
			return "it is not known as a product whose ECC is to be on"
		case g.ECC == nil:
			return g.na("ecc")
		case !*g.ECC:
			r.Reason = "ECC is off"
		}
		return ""
	})
}

func sramThreshold(n *Node) []check.Result {
	return n.eachGPU("sram-threshold", "replace the GPU", func(g *gpu, r *check.Result) string {
		if g.SRAM == nil {
			return g.na("sram_threshold")
		}
		if *g.SRAM {
			r.Reason = "the maker's threshold of uncorrected errors in its caches is exceeded"
		}
		return ""
	})
}

// rows judges what a GPU says of replaced rows.
func (n *Node) rows(id, try string, look func(*gpu, *check.Result)) []check.Result {
	return n.eachGPU(id, try, func(g *gpu, r *check.Result) string {
		switch {
		case !g.remaps():
			return "it is not known as a product that replaces rows"
		case g.Remapped == nil:
			return g.na("remapped_rows")
		}
		look(g, r)
		return ""
	})
}

func remapFailed(n *Node) []check.Result {
	return n.rows("remap-failed", "replace the GPU", func(g *gpu, r *check.Result) {
		if g.Remapped.Failed {
			r.Reason = "a row could not be replaced"
		}
	})
}

func remapPending(n *Node) []check.Result {
	const id, try = "remap-pending", "reset the GPU or reboot the node"
	results := n.rows(id, try, func(g *gpu, r *check.Result) {
		if g.Remapped.Pending {
			r.Reason = "a row is replaced at the next reset"
		}
	})
	return n.withOthers(results, n.gaudiRows(id, try))
}

// remapMany: 512 is where DCGM warns in watching and fails in its diagnosis, and Azure fails.
func remapMany(n *Node) []check.Result {
	limit := int(n.Policy.Limit("remap-many"))
	return n.rows("remap-many", "replace the GPU", func(g *gpu, r *check.Result) {
		if g.Remapped.Uncorrectable >= limit {
			r.Reason = fmt.Sprintf("%d rows were replaced for uncorrected errors", g.Remapped.Uncorrectable)
			r.Value, r.Limit = fmt.Sprint(g.Remapped.Uncorrectable), fmt.Sprint(limit)
		}
	})
}

// Pages are retired by what came before Ampere.
const noPages = "it replaces rows, and retires no pages"

func retiredPending(n *Node) []check.Result {
	return n.eachGPU("retired-pending", "reboot the node", func(g *gpu, r *check.Result) string {
		switch {
		case g.remaps():
			return noPages
		case g.RetiredPending == nil:
			return g.na("retired_pending")
		case *g.RetiredPending:
			r.Reason = "pages are retired at the next reboot"
		}
		return ""
	})
}

// retiredMany: DCGM fails from 63 on, Azure from 62 on; 64 is what a GPU has room for.
func retiredMany(n *Node) []check.Result {
	const id, try = "retired-many", "replace the GPU"
	limit := int(n.Policy.Limit(id))
	results := n.eachGPU(id, try, func(g *gpu, r *check.Result) string {
		switch {
		case g.remaps():
			return noPages
		case g.RetiredSBE == nil || g.RetiredDBE == nil:
			return g.na("retired_dbe")
		}
		if pages := *g.RetiredSBE + *g.RetiredDBE; pages >= limit {
			r.Reason = fmt.Sprintf("%d pages are retired", pages)
			r.Value, r.Limit = fmt.Sprint(pages), fmt.Sprint(limit)
		}
		return ""
	})
	return n.withOthers(results, n.metaxPages(id, try, limit))
}

var rasUncorrected = lazyregexp.New(`(?m)^ue:\s*(\d+)`)

// amdErrors judges AMD's GPUs by the driver's counters, a file for each block with "ue: N" (uncorrected) and "ce: N".
// It returns nil where there is no AMD GPU.
func (n *Node) amdErrors(id, what string) []check.Result {
	return n.eachAMD(id, "reset the GPU, and replace it if they come back", func(d accel.Device, r *check.Result) string {
		dir := path.Join("sys/bus/pci/devices", d.BusID, "ras")
		entries, err := fs.ReadDir(n.Root, dir)
		if err != nil {
			return "the driver shows no RAS counters"
		}
		var count uint64
		known := false
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), "_err_count") {
				continue
			}
			text, err := fs.ReadFile(n.Root, path.Join(dir, e.Name()))
			if found := rasUncorrected().FindSubmatch(text); err == nil && found != nil {
				if v, err := strconv.ParseUint(string(found[1]), 10, 64); err == nil {
					known = true
					count += v
				}
			}
		}
		if !known {
			return "the driver shows no RAS counters"
		}
		n.counted(r, count, what)
		return ""
	})
}

// eachAMD judges the AMD GPUs that a worker sees.
func (n *Node) eachAMD(id, try string, look func(accel.Device, *check.Result) (unknown string)) []check.Result {
	var results []check.Result
	for _, f := range n.Inventory.Families {
		if f.Vendor != "amd" {
			continue
		}
		devices := ofJob(f)
		for _, d := range devices {
			r := bad(id, "", try)
			r.Subject = subject(d)
			switch why := look(d, &r); {
			case why != "":
				r.Status, r.Reason, r.Try = check.Skip, why, ""
				results = append(results, r)
			case r.Reason != "":
				results = append(results, r)
			}
		}
		if len(devices) > 0 && results == nil {
			results = pass(id)
		}
	}
	return results
}
