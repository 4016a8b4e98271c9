package accel

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/internal/wording"
)

// Share is what one worker has for itself.
type Share struct {
	Device Device            // that the worker's share is of
	Vars   map[string]string // the variables by which the worker sees nothing else
	How    string            // in a few words, for people
}

// ShareInstances gives each worker that Workers counts for "auto" a MIG instance of its own, by local rank: a CUDA
// process sees one instance and no more, the same one in every worker that inherits the same mask. It returns nil where
// workers share what they inherit.
func (inv Inventory) ShareInstances() ([]Share, error) { return inv.shareInstances() }

func (f Family) shareInstances() ([]Share, error) {
	if n := f.divided(); n == 0 || n < len(f.Visible) {
		return nil, nil
	}
	var shares []Share
	for _, d := range f.Visible {
		for _, in := range d.usableInstances() {
			if in.Mask == "" {
				return nil,
					undecided(errhint.Usagef(
						"cannot give each worker a MIG instance of its own: the driver does not tell the UUID of GPU %d", d.Index))
			}
			shares = append(shares,
				Share{d, map[string]string{"CUDA_VISIBLE_DEVICES": in.Mask}, fmt.Sprintf("a MIG instance of GPU %d", d.Index)})
		}
	}
	return shares, nil
}

// ShareDevices gives each of a node's workers one of the visible devices, in the order in which these are visible, or
// one of their MIG instances where all of them are divided. word is the word by which workers were counted, or a
// number. Errors carry status 2.
func (inv Inventory) ShareDevices(word string, workers int, lookup func(string) (string, bool)) ([]Share, error) {
	f := inv.meant(word)
	shares, err := f.shareDevices(lookup)
	if err == nil && len(shares) != workers {
		one, hint := deviceWord(word, f),
			fmt.Sprintf(", or choose %s by %s", wording.Plural(workers, "device"), vendorNamed(f.Vendor).masks[0])
		if f.divided() > 0 {
			one, hint = "MIG instance", ""
		}
		err = errhint.With(
			fmt.Errorf("%s and %s that a worker would see: each is to have one",
				wording.Plural(workers, "worker"), wording.Plural(len(shares), one)),
			"start "+wording.Plural(len(shares), "worker")+hint)
	}
	if err != nil {
		return nil, errhint.Code(err, errhint.Usage)
	}
	return shares, nil
}

func (f Family) shareDevices(lookup lookup) ([]Share, error) {
	if f.Undecided != nil { // its hint is about the number of workers
		hint := "name the vendor by --nproc-per-node, as in --nproc-per-node nvidia"
		if v := vendorNamed(f.Vendor); v != nil {
			for _, name := range v.masks {
				if text, set := lookup(name); set {
					hint = fmt.Sprintf("unset %s, whose %q only the vendor's library can resolve, or name devices by plain numbers where "+
						"that is possible",
						name, wording.Clip(text))
					break
				}
			}
		}
		return nil, errhint.With(errors.New(f.Undecided.Error()), hint)
	}
	if len(f.Visible) == 0 {
		err := errors.New("there is no accelerator that a worker would see")
		if len(f.Why) > 0 {
			err = fmt.Errorf("%w (%s)", err, strings.Join(f.Why, "; "))
		}
		return nil, err
	}
	switch divided, err := f.shareInstances(); {
	case err != nil:
		return nil, err
	case f.divided() > 0 && divided == nil:
		return nil, fmt.Errorf("%d of %s are divided into MIG instances", f.divided(), wording.Plural(len(f.Visible), "visible GPU"))
	case divided != nil:
		return divided, nil
	}
	masks, err := vendorNamed(f.Vendor).alone(f, lookup)
	if err != nil {
		return nil, err
	}
	shares := make([]Share, len(masks))
	for i, vars := range masks {
		shares[i] = Share{f.Visible[i], vars, fmt.Sprintf("device %d", f.Visible[i].Index)}
	}
	return shares, nil
}

// meant returns the family that a word for the number of workers means; that of "auto" for words that are no devices.
func (inv Inventory) meant(word string) Family {
	switch {
	case backendWords[word] != "":
		return inv.of(func(f Family) bool { return f.Backend == backendWords[word] })
	case vendorNamed(word) != nil:
		return inv.of(func(f Family) bool { return f.Vendor == word })
	}
	return inv.Family
}

// aloneByNumber sets the variables to the device's number, all of them to the same: where one wins over another, nobody
// has to know which.
func aloneByNumber(names ...string) func(f Family, lookup lookup) ([]map[string]string, error) {
	return func(f Family, _ lookup) ([]map[string]string, error) {
		var masks []map[string]string
		for _, d := range f.Visible {
			masks = append(masks, same(names, strconv.Itoa(d.Index)))
		}
		return masks, nil
	}
}

func same(names []string, value string) map[string]string {
	vars := map[string]string{}
	for _, name := range names {
		vars[name] = value
	}
	return vars
}

// aloneCUDA names the device by its UUID, which means the same in every order, or by its number where the driver does
// not tell one.
func aloneCUDA(f Family, lookup lookup) ([]map[string]string, error) {
	if order, set := lookup("CUDA_DEVICE_ORDER"); set && order != byBus && differ(f.Devices) {
		return nil,
			fmt.Errorf("the GPUs are of several models, and with CUDA_DEVICE_ORDER=%q nobody can tell which has which number: set it to %s",
				wording.Clip(order), byBus)
	}
	var masks []map[string]string
	for _, d := range f.Visible {
		id := d.UUID
		if id == "" {
			id = strconv.Itoa(d.Index)
		}
		masks = append(masks, map[string]string{"CUDA_VISIBLE_DEVICES": id})
	}
	return masks, nil
}

// aloneROCm leaves ROCR_VISIBLE_DEVICES as it was inherited and chooses of what it leaves: HIP_VISIBLE_DEVICES has
// numbers of that set, and the runtime below still knows the other GPUs, as RCCL needs to copy between processes
// (expected, not tried). HIP reads CUDA_VISIBLE_DEVICES where HIP_VISIBLE_DEVICES is not set; both alike leave nothing
// to know.
func aloneROCm(f Family, lookup lookup) ([]map[string]string, error) {
	if f.VisibleCount != len(f.Visible) {
		return nil, fmt.Errorf("the visibility variables name %d devices, and only %d are there", f.VisibleCount, len(f.Visible))
	}
	if text, set := lookup("GPU_DEVICE_ORDINAL"); set {
		return nil, fmt.Errorf("GPU_DEVICE_ORDINAL=%q would choose again: unset it", wording.Clip(text))
	}
	base := upTo(len(f.Devices))
	if text, set := lookup("ROCR_VISIBLE_DEVICES"); set {
		base = resolveROCR(text, f.Devices)
	}
	var masks []map[string]string
	for _, d := range f.Visible {
		masks = append(masks, same([]string{"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}, strconv.Itoa(slices.Index(base, d.Index))))
	}
	return masks, nil
}

// aloneIntel: Level Zero counts integrated GPUs, too, and those of which this process may not use the node.
func aloneIntel(f Family, lookup lookup) ([]map[string]string, error) {
	if len(f.Unusable) > 0 {
		return nil, fmt.Errorf("the numbers of Intel GPUs in ZE_AFFINITY_MASK are not known beside %s: %s", f.Unusable[0].place(),
			f.Unusable[0].WhyNot)
	}
	return aloneByNumber("ZE_AFFINITY_MASK")(f, lookup)
}

func aloneGaudi(Family, lookup) ([]map[string]string, error) {
	return nil, errors.New("HABANA_VISIBLE_MODULES names Gaudi's modules, whose numbers no file tells")
}

// SharedVars returns variables that all workers are to get beside what they inherit: MetaX's two masks, of which one is
// set, and where numbers of NVIDIA's devices matter to us, the order that these follow. word is as for ShareDevices.
func (inv Inventory) SharedVars(word string, ordered bool, lookup func(string) (string, bool)) map[string]string {
	f := inv.meant(word)
	vars := map[string]string{}
	if _, set := lookup("CUDA_DEVICE_ORDER"); f.Vendor == "nvidia" && ordered && !set {
		vars["CUDA_DEVICE_ORDER"] = byBus
	}
	if f.Vendor == "metax" {
		maca, macaSet := lookup("MACA_VISIBLE_DEVICES")
		cuda, cudaSet := lookup("CUDA_VISIBLE_DEVICES")
		switch {
		case macaSet && !cudaSet:
			vars["CUDA_VISIBLE_DEVICES"] = maca
		case cudaSet && !macaSet:
			vars["MACA_VISIBLE_DEVICES"] = cuda
		}
	}
	return vars
}

// OneMaskOfTwo reports whether one of MetaX's two masks is set and the other is not, on a machine with its driver: then
// SharedVars has something to say, and else it need not be asked.
func OneMaskOfTwo(root Root, lookup func(string) (string, bool)) bool {
	_, maca := lookup("MACA_VISIBLE_DEVICES")
	_, cuda := lookup("CUDA_VISIBLE_DEVICES")
	return maca != cuda && root.Access("dev/mxcd") == nil
}

// byBus is the CUDA_DEVICE_ORDER in which we number.
const byBus = "PCI_BUS_ID"

// differ reports whether devices are of several models.
func differ(devices []Device) bool {
	return slices.ContainsFunc(devices, func(d Device) bool { return d.Model != devices[0].Model })
}
