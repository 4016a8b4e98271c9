//go:build !(linux && nvprobe_embed && (amd64 || arm64))

package probe

// blob is the probe's executable; this build carries none.
var blob string
