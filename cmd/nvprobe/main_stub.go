//go:build !linux || !cgo

package main

import (
	"os"

	"muster/internal/accel/nvline"
)

// main of a build that cannot load a C library says so in the language of the probe.
func main() {
	out := &writer{to: os.Stdout}
	out.put(nvline.HelloLine{T: nvline.Hello, V: nvline.Version, GoNVML: nvline.GoNVML})
	out.put(nvline.FatalLine{T: nvline.Fatal, Why: "built without cgo"})
	out.put(nvline.DoneLine{T: nvline.Done})
}
