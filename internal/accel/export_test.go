package accel

import "errors"

var (
	ResolveCUDA = resolveCUDA
	ParseList   = parseList
)

// Dir returns a Root over a rendered tree of files.
func Dir(dir string) Root { return dirRoot(dir) }

// IsMIG reports whether resolving ended at a mask of MIG instances.
func IsMIG(err error) bool { return errors.Is(err, errMIG) }

// CountROCm returns what a ROCm build of PyTorch counts of n devices, and whether it asks the runtime or fails.
func CountROCm(lookup func(string) (string, bool), n int) (count int, ask, bad bool) {
	v, err := seeROCm(vendorNamed("amd"), lookup, make([]Device, n))
	return v.count, errors.Is(err, errAsk), err != nil && !errors.Is(err, errAsk)
}
