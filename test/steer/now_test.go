package steer

import (
	"testing"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestStopNowLauncher: muster stop --now ends the grace of the workers of a launcher's nodes, which hear of the end and
// of that in the same moment.
func TestStopNowLauncher(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	spec := drive.WriteScript(t, "fake.yaml", "version: 1\ndefaults: {vendor: nvidia, count: 1, model: NVIDIA H100 80GB HBM3}\n")
	for name, nodes := range map[string][]string{
		"hosts":     {"--hosts", "127.0.0.1,127.0.0.2"},
		"simulated": {"--simulate-nodes", "2", "--nnodes", "2", "--accelerator", "fake:" + spec},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append(append([]string{"run"}, nodes...), "-n", "1", "--grace", "1h", "--", "sh", "-c",
				`trap "" TERM; while :; do sleep 0.2; done`)
			j := drive.Start(t, nil, args...)
			drive.UntilRanks(t, j.RuntimeDir, 2)
			drive.Beside(t, j.RuntimeDir, "stop", "--now").Expect(t, 0, "without grace")
			j.End().Expect(t, 143)
		})
	}
}
