package accel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"muster/internal/wording"
)

// view is what the visibility variables leave of a vendor's devices.
type view struct {
	shown []int // positions, in the order in which a worker numbers them
	// count is what PyTorch counts. It is above len(shown) where a variable names devices that are not there and
	// PyTorch counts the names alone.
	count int
	why   string
}

func newView(shown []int, name, text string, set bool, of int) view {
	if !set {
		return view{shown, len(shown), fmt.Sprintf("%s is not set: %d of %d visible", name, len(shown), of)}
	}
	return view{shown, len(shown), fmt.Sprintf("%s=%q: %d of %d visible", name, wording.Clip(text), len(shown), of)}
}

// seeCUDA applies CUDA_VISIBLE_DEVICES.
func seeCUDA(_ *vendor, lookup lookup, devices []Device) (view, error) {
	text, set := lookup("CUDA_VISIBLE_DEVICES")
	shown, err := resolveCUDA(text, set, uuidsOf(devices))
	return newView(shown, "CUDA_VISIBLE_DEVICES", text, set, len(devices)), err
}

func uuidsOf(devices []Device) []string {
	uuids := make([]string, len(devices))
	for i, d := range devices {
		uuids[i] = d.UUID
	}
	return uuids
}

// seeMetaX applies MACA_VISIBLE_DEVICES and, of the CUDA compatible layer, CUDA_VISIBLE_DEVICES. Nobody has documented
// which one wins, so that they must name the same devices.
func seeMetaX(v *vendor, lookup lookup, devices []Device) (view, error) {
	maca, cuda := v.masks[0], v.masks[1]
	macaText, macaSet := lookup(maca)
	cudaText, cudaSet := lookup(cuda)
	name, text := maca, macaText
	if !macaSet && cudaSet {
		name, text = cuda, cudaText
	}
	shown, err := resolveNumbers(name, text, macaSet || cudaSet, len(devices))
	if err != nil {
		return view{}, err
	}
	if macaSet && cudaSet && macaText != cudaText {
		other, err := resolveNumbers(cuda, cudaText, true, len(devices))
		if err != nil {
			return view{}, err
		}
		if !slices.Equal(shown, other) {
			return view{}, fmt.Errorf("%s=%q and %s=%q name different devices: set both to the same value",
				maca, wording.Clip(macaText), cuda, wording.Clip(cudaText))
		}
	}
	return newView(shown, name, text, macaSet || cudaSet, len(devices)), nil
}

// seeNumbers applies a list of device numbers by the rules of CUDA_VISIBLE_DEVICES, after which the variable was made.
func seeNumbers(v *vendor, lookup lookup, devices []Device) (view, error) {
	text, set := lookup(v.masks[0])
	shown, err := resolveNumbers(v.masks[0], text, set, len(devices))
	return newView(shown, v.masks[0], text, set, len(devices)), err
}

// resolveNumbers is resolveOrdinals for variables that may name devices in ways only the vendor's library understands.
func resolveNumbers(name, text string, set bool, n int) ([]int, error) {
	if !set {
		return upTo(n), nil
	}
	if r := []rune(strings.TrimSpace(text)); len(r) > 0 && unicode.IsLetter(r[0]) {
		return nil, askRuntime(name, text)
	}
	return resolveOrdinals(name, text, n)
}

// askRuntime says that only the vendor's library, in a worker, knows how many devices a variable leaves.
func askRuntime(name, text string) error {
	return fmt.Errorf("cannot tell how many devices %s=%q leaves: %w", name, wording.Clip(text), errAsk)
}

var errAsk = errors.New("that is for the vendor's runtime to resolve")

// seeUnset counts all devices unless one of the masks is set: they name what files do not tell, such as the module
// numbers of Gaudi.
func seeUnset(v *vendor, lookup lookup, devices []Device) (view, error) {
	for _, name := range v.masks {
		if text, set := lookup(name); set {
			return view{}, askRuntime(name, text)
		}
	}
	return newView(upTo(len(devices)), v.masks[0], "", false, len(devices)), nil
}

// seeIntel is seeUnset where every device has one tile. Whether a tile is a device is for the runtime to say.
func seeIntel(v *vendor, lookup lookup, devices []Device) (view, error) {
	for _, d := range devices {
		if slices.Contains(d.Notes, noteTiles) {
			return view{}, fmt.Errorf("cannot count the tiles of Intel GPU %s: that is for the vendor's runtime to do", d.BusID)
		}
	}
	return seeUnset(v, lookup, devices)
}

// seeROCm answers as torch.cuda.device_count() of a ROCm build does (PyTorch 2.15.0, torch/cuda/__init__.py,
// _parse_visible_devices and _device_count_amdsmi; the tests compare with it). HIP_VISIBLE_DEVICES replaces
// CUDA_VISIBLE_DEVICES and is a list of numbers. ROCR_VISIBLE_DEVICES comes first and makes the set smaller that those
// numbers mean; PyTorch counts its entries and does not read them.
func seeROCm(_ *vendor, lookup lookup, devices []Device) (view, error) {
	rocr, rocrSet := lookup("ROCR_VISIBLE_DEVICES")
	name := "CUDA_VISIBLE_DEVICES"
	text, set := lookup(name)
	if hip, ok := lookup("HIP_VISIBLE_DEVICES"); ok {
		name, text, set = "HIP_VISIBLE_DEVICES", hip, true
		if entries := strings.Count(rocr, ",") + 1; rocrSet && strings.Count(hip, ",")+1 > entries {
			return view{}, fmt.Errorf("HIP_VISIBLE_DEVICES=%q has more devices than ROCR_VISIBLE_DEVICES=%q, of which it chooses",
				wording.Clip(hip), wording.Clip(rocr))
		}
	} else if rocrSet {
		name, text, set = "ROCR_VISIBLE_DEVICES", rocr, true
	}
	var list []int
	var err error
	switch {
	case name == "ROCR_VISIBLE_DEVICES":
		list = upTo(min(strings.Count(rocr, ",")+1, len(devices)))
	case !set:
		list = upTo(min(len(devices), maxOrdinals))
	case hasAnyPrefix(text, "GPU-", "MIG-"):
		if len(idsWithPrefix(text, text[:len("GPU-")])) > 0 {
			return view{}, askRuntime(name, text)
		}
	default:
		list, err = resolveOrdinals(name, text, len(devices))
	}
	if err != nil {
		return view{}, err
	}
	base := upTo(len(devices))
	if rocrSet {
		base = resolveROCR(rocr, devices)
	}
	v := newView(list, name, text, set, len(devices))
	v.shown = nil
	for _, i := range list {
		if i < len(base) {
			v.shown = append(v.shown, base[i])
		}
	}
	if len(v.shown) < v.count {
		v.why += fmt.Sprintf(", by PyTorch's count; ROCR_VISIBLE_DEVICES=%q names %d of them", wording.Clip(rocr), len(v.shown))
	}
	if ordinals, ok := lookup("GPU_DEVICE_ORDINAL"); ok {
		v.why += fmt.Sprintf(" (PyTorch does not count by GPU_DEVICE_ORDINAL=%q, which the runtime applies)", wording.Clip(ordinals))
	}
	return v, nil
}

// resolveROCR returns the positions of the devices that ROCR_VISIBLE_DEVICES names, by number or by the prefix of a
// UUID, up to the first element that names none, or one again (ROCm documentation, "GPU isolation techniques").
func resolveROCR(text string, devices []Device) []int {
	var list []int
	for elem := range strings.SplitSeq(text, ",") {
		elem = strings.TrimSpace(elem)
		i := -1
		if strings.HasPrefix(elem, "GPU-") {
			if found := resolveUUIDs([]string{elem}, uuidsOf(devices)); len(found) == 1 {
				i = found[0]
			}
		} else if digits, ok, err := leadingNumber(elem); ok && err == nil {
			i = atMost(digits, len(devices))
		}
		if i < 0 || i >= len(devices) || slices.Contains(list, i) {
			return list
		}
		list = append(list, i)
	}
	return list
}

// seeAscend applies ASCEND_RT_VISIBLE_DEVICES.
func seeAscend(v *vendor, lookup lookup, devices []Device) (view, error) {
	text, set := lookup(v.masks[0])
	shown, err := resolveAscend(text, set, len(devices))
	return newView(shown, v.masks[0], text, set, len(devices)), err
}

// resolveAscend answers as torch_npu.npu.device_count() does (Ascend/pytorch 9e73e708a of August 2026,
// torch_npu/npu/__init__.py, _parse_visible_devices and _device_count_ascend_hal, read): the text counts up to the
// first character that is neither a digit nor a comma, its list up to the first empty element. The list is then walked:
// a number that is not above the one before it makes 0 devices, one of no device ends the list.
func resolveAscend(text string, set bool, n int) ([]int, error) {
	if !set {
		return upTo(min(n, maxOrdinals)), nil
	}
	if i := strings.IndexFunc(text, func(r rune) bool {
		return r != ',' && !unicode.Is(unicode.Nd, r) && !unicode.Is(digitsNotDecimal, r)
	}); i >= 0 {
		text = text[:i]
	}
	var list []string
	for elem := range strings.SplitSeq(text, ",") {
		digits, ok, err := leadingNumber(elem)
		if err != nil {
			return nil, fmt.Errorf("cannot read ASCEND_RT_VISIBLE_DEVICES=%q: element %q: %w", wording.Clip(text), wording.Clip(elem), err)
		}
		if !ok {
			break
		}
		list = append(list, digits)
	}
	var shown []int
	for i, digits := range list {
		if i > 0 && cmp.Or(cmp.Compare(len(digits), len(list[i-1])), strings.Compare(digits, list[i-1])) <= 0 {
			return nil, nil
		}
		at := atMost(digits, n)
		if at >= n {
			return shown, nil
		}
		shown = append(shown, at)
	}
	return shown, nil
}

// apply fills in what a worker sees of f's devices.
func (v *vendor) apply(f *Family, lookup lookup) {
	view, err := v.see(v, lookup, f.Devices)
	if err != nil {
		f.Undecided = undecided(err)
		f.Why = append(f.Why, err.Error())
		return
	}
	for at, i := range view.shown {
		f.Devices[i].VisibleIndex = at
		f.Visible = append(f.Visible, f.Devices[i])
	}
	f.VisibleCount = view.count
	f.Why = append(f.Why, view.why)
}

// withheld says so where a container runtime was told to give no device.
func (v *vendor) withheld(lookup lookup) (why string, ok bool) {
	text, ok := lookup(v.runtime)
	if v.runtime == "" || !ok || text != "" && text != "none" && text != "void" {
		return "", false
	}
	return fmt.Sprintf("%s=%q: this container was given no %s", v.runtime, text, lastWord(v.title)), true
}

func lastWord(s string) string { return s[strings.LastIndexByte(s, ' ')+1:] }

var errWSL = errors.New("cannot count GPUs under WSL: it has no device node per GPU")
