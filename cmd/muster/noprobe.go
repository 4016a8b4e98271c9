//go:build !nvprobe_embed

package main

// probeText is "" in a build that carries no NVML probe.
const probeText = ""
