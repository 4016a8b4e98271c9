//go:build nvprobe_embed

package main

import "muster/internal/accel/probe"

// probeText tells in --version that this build carries the NVML probe.
var probeText = "\n" + probe.Describe().String()
