package accel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"muster/internal/wording"
)

// maxOrdinals is how many devices PyTorch looks at where CUDA_VISIBLE_DEVICES is not set.
const maxOrdinals = 64

// maxDigits is the longest number Python's int() reads (sys.get_int_max_str_digits).
const maxDigits = 4300

// errMIG says that CUDA_VISIBLE_DEVICES names MIG instances, of which only the CUDA library knows how many exist.
var errMIG = errors.New("cannot count the MIG instances that CUDA_VISIBLE_DEVICES names")

// resolveCUDA returns the positions in uuids (one entry per device in PCI order; "" where unknown) of the devices that
// a process with this CUDA_VISIBLE_DEVICES sees. It answers as torch.cuda.device_count() does (PyTorch 2.15.0,
// torch/cuda/__init__.py, _parse_visible_devices and _device_count_nvml; the tests compare with it), oddities included:
//
//   - unset: all, but no more than 64;
//   - first element begins with "GPU-": prefixes of UUIDs, untrimmed, up to the first that names no GPU or several;
//   - first element begins with "MIG-": errMIG;
//   - else numbers, trimmed, of which the leading digits count ("1gpu2" is 1), up to the first that is negative or not a
//     number or names no device;
//   - any repetition before that point: none at all.
//
// It fails too where an element is one at which PyTorch raises ValueError, and where a UUID it needs is unknown.
func resolveCUDA(mask string, set bool, uuids []string) ([]int, error) {
	switch {
	case !set:
		return upTo(min(len(uuids), maxOrdinals)), nil
	case strings.HasPrefix(mask, "GPU-"):
		ids := idsWithPrefix(mask, "GPU-")
		if len(ids) > 0 && slices.Contains(uuids, "") {
			return nil, fmt.Errorf("cannot resolve CUDA_VISIBLE_DEVICES=%q: the driver does not tell every GPU's UUID", wording.Clip(mask))
		}
		return resolveUUIDs(ids, uuids), nil
	case strings.HasPrefix(mask, "MIG-"):
		if len(idsWithPrefix(mask, "MIG-")) == 0 {
			return nil, nil
		}
		return nil, errMIG
	default:
		return resolveOrdinals("CUDA_VISIBLE_DEVICES", mask, len(uuids))
	}
}

// upTo returns the numbers below n.
func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// idsWithPrefix returns the leading elements of a mask that begin with prefix; none if one is repeated up to and
// including the element that ends the list.
func idsWithPrefix(mask, prefix string) []string {
	var ids []string
	seen := map[string]bool{}
	for elem := range strings.SplitSeq(mask, ",") {
		if seen[elem] {
			return nil
		}
		if !strings.HasPrefix(elem, prefix) {
			break
		}
		seen[elem] = true
		ids = append(ids, elem)
	}
	return ids
}

// resolveUUIDs returns the position of each candidate, stopping at the first that is a prefix of no UUID or of several;
// none if two candidates name the same GPU.
func resolveUUIDs(candidates, uuids []string) []int {
	var shown []int
	for _, c := range candidates {
		match := -1
		for i, u := range uuids {
			if !strings.HasPrefix(u, c) {
				continue
			}
			if match >= 0 {
				return shown
			}
			match = i
		}
		if match < 0 {
			return shown
		}
		if slices.Contains(shown, match) {
			return nil
		}
		shown = append(shown, match)
	}
	return shown
}

// resolveOrdinals reads a list of device numbers, the value of the variable name. The list is read to its end before
// any number is compared with n, so "0,9,0" is a repetition even where there is no device 9.
func resolveOrdinals(name, mask string, n int) ([]int, error) {
	var list []string // without sign and leading zeros; as text because Python's numbers have no limit
	seen := map[string]bool{}
	for elem := range strings.SplitSeq(mask, ",") {
		digits, ok, err := leadingNumber(strings.TrimFunc(elem, isPythonSpace))
		if err != nil {
			return nil, fmt.Errorf("cannot read %s=%q: element %q: %w", name, wording.Clip(mask), wording.Clip(elem), err)
		}
		if !ok {
			break
		}
		if seen[digits] {
			return nil, nil
		}
		seen[digits] = true
		list = append(list, digits)
	}
	var shown []int
	for _, digits := range list {
		i := atMost(digits, n)
		if i >= n {
			break
		}
		shown = append(shown, i)
	}
	return shown, nil
}

// atMost returns the number that digits spell where it is below n, else n or more.
func atMost(digits string, n int) int {
	i := 0
	for _, d := range digits {
		// A number past n stays past n; not multiplying further avoids an overflow.
		if i < n {
			i = i*10 + int(d-'0')
		}
	}
	return i
}

// leadingNumber returns the digits that s begins with, after at most one sign, without leading zeros. ok is false where
// s begins with no number or with a negative one. It fails where Python's int() would.
func leadingNumber(s string) (digits string, ok bool, err error) {
	var b strings.Builder
	sign := rune(0)
	for i, r := range s {
		if i == 0 && (r == '+' || r == '-') {
			sign = r
			continue
		}
		if unicode.Is(digitsNotDecimal, r) {
			return "", false, fmt.Errorf("%q is no decimal digit", r)
		}
		if !unicode.Is(unicode.Nd, r) {
			break
		}
		b.WriteByte('0' + digitValue(r))
	}
	switch {
	case b.Len() == 0 && sign != 0:
		return "", false, errors.New("a sign without a number")
	case b.Len() == 0:
		return "", false, nil
	case b.Len() > maxDigits:
		return "", false, fmt.Errorf("a number of %d digits exceeds the limit of %d", b.Len(), maxDigits)
	}
	digits = strings.TrimLeft(b.String(), "0")
	if digits == "" {
		return "0", true, nil // "-0" too
	}
	return digits, sign != '-', nil
}

// digitValue returns the value 0 to 9 of r, a decimal digit of any script. Unicode keeps the ten digits of a script
// together and in order; some scripts follow each other without a gap.
func digitValue(r rune) byte {
	zero := r
	for unicode.Is(unicode.Nd, zero-1) {
		zero--
	}
	return byte((r - zero) % 10)
}

// digitsNotDecimal are the characters for which Python's str.isdigit() holds although int() refuses them: superscripts,
// circled digits and their like (Unicode's Numeric_Type=Digit).
var digitsNotDecimal = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x00b2, Hi: 0x00b3, Stride: 1},
		{Lo: 0x00b9, Hi: 0x00b9, Stride: 1},
		{Lo: 0x1369, Hi: 0x1371, Stride: 1},
		{Lo: 0x19da, Hi: 0x19da, Stride: 1},
		{Lo: 0x2070, Hi: 0x2070, Stride: 1},
		{Lo: 0x2074, Hi: 0x2079, Stride: 1},
		{Lo: 0x2080, Hi: 0x2089, Stride: 1},
		{Lo: 0x2460, Hi: 0x2468, Stride: 1},
		{Lo: 0x2474, Hi: 0x247c, Stride: 1},
		{Lo: 0x2488, Hi: 0x2490, Stride: 1},
		{Lo: 0x24ea, Hi: 0x24ea, Stride: 1},
		{Lo: 0x24f5, Hi: 0x24fd, Stride: 1},
		{Lo: 0x24ff, Hi: 0x24ff, Stride: 1},
		{Lo: 0x2776, Hi: 0x277e, Stride: 1},
		{Lo: 0x2780, Hi: 0x2788, Stride: 1},
		{Lo: 0x278a, Hi: 0x2792, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x10a40, Hi: 0x10a43, Stride: 1},
		{Lo: 0x10e60, Hi: 0x10e68, Stride: 1},
		{Lo: 0x11052, Hi: 0x1105a, Stride: 1},
		{Lo: 0x1f100, Hi: 0x1f10a, Stride: 1},
	},
	LatinOffset: 2,
}

// isPythonSpace reports what Python's str.strip() removes: Unicode's white space and four control characters.
func isPythonSpace(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }
