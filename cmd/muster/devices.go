package main

import (
	"context"

	"github.com/spf13/cobra"
)

// newDevicesCmd is "muster devices": what accelerators are here.
func newDevicesCmd(a *app) *cobra.Command {
	var f acceleratorFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devices [--json] [--accelerator fake:FILE]",
		Short: "Show this node's accelerators, and what a worker sees of them",
		Long: `Show this node's accelerators: which there are, which this process may use, which a
worker sees under the visibility variables that are set, how many workers
--nproc-per-node auto starts, what each GPU does now, and what is wrong with it.

It reads files in /proc, /sys and the presence of device nodes, which cannot hang. Where
there are NVIDIA GPUs, their library NVML is asked by a program of its own, which may hang
or crash without harm; where there is none, nvidia-smi. Other vendors' tools are asked in
the same way. muster check judges the whole node.`,
		Example: "  muster devices\n  CUDA_VISIBLE_DEVICES=0,3 muster devices --json\n  muster devices --accelerator fake:gpus.yaml",
		Annotations: map[string]string{exitAnnotation: "  0    shown, also where there is none\n" +
			"  2    usage error, or the spec cannot be used\n  125  internal error of muster\n"},
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.showDevices(cmd.Context(), f, asJSON)
		},
	}
	f.add(cmd.Flags(), a)
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	fixedWords(cmd, map[string][]string{"probe-exec": probeWords})
	return cmd
}

func (a *app) showDevices(ctx context.Context, f acceleratorFlags, asJSON bool) error {
	here, err := f.look(ctx, a, 0)
	if err != nil {
		return err
	}
	d, err := here.Report(ctx)
	if err != nil {
		return err
	}
	return a.show(d, asJSON)
}
