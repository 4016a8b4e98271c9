//go:build linux && nvprobe_embed

package probe

import _ "embed" // for the directive

// blob is the probe's executable, compressed by gzip, made by make release. Without the file the build fails: no
// release lacks its probe.
//
//go:embed blob/nvprobe-amd64.gz
var blob string
