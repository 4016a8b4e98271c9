package accel

import "errors"

var (
	ResolveCUDA = resolveCUDA
	ReadSpec    = readSpec
)

// Dir returns a Root over a rendered tree of files.
func Dir(dir string) Root { return dirRoot(dir) }

// IsMIG reports whether resolving ended at a mask of MIG instances.
func IsMIG(err error) bool { return errors.Is(err, errMIG) }
