package main

import (
	"fmt"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"muster/cmd/convert"
	"muster/cmd/manifest"
	"muster/internal/errhint"
)

func newManifestCmd(a *app) *cobra.Command {
	var s manifest.Spec
	cmd := &cobra.Command{
		Use:   "manifest KIND [flags] -- COMMAND",
		Short: "Write the file by which a cluster is asked for a job: YAML for Kubernetes, a script for Slurm",
		Long:  manifestLong(),
		Example: `  muster manifest k8s-job --nodes 4 -n 8 --image registry/train:1 --queue research -- python train.py > job.yaml
  muster manifest slurm --nodes 4 -n 8 --deadline 12h --ckpt-dir /shared/ckpt -- python train.py > job.sbatch`,
		Annotations: map[string]string{exitAnnotation: "  0  the file was written to standard output\n" +
			"  2  usage error; nothing was written\n"},
		Args: func(cmd *cobra.Command, args []string) error {
			before := cmd.ArgsLenAtDash()
			switch {
			case before < 0 && len(args) > 1:
				return errhint.Usagef("the command must stand behind --, as in muster manifest %s -- %s", args[0],
					shellescape.QuoteCommand(args[1:]))
			case before == 0 || len(args) == 0:
				return errhint.With(errhint.Usagef("name the kind of file"), "there are "+strings.Join(manifest.Kinds(), ", "))
			case before > 1:
				return errhint.Usagef("unexpected %q: in front of -- stands the kind alone", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s.Kind, s.Command = args[0], args[1:]
			if err := convert.Settle(&s, typed(cmd.Flags())); err != nil {
				return err
			}
			_, err := a.stdout.Write(manifest.Write(s))
			return err
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return manifest.Kinds(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	manifestFlags(cmd.Flags(), &s)
	return cmd
}

func manifestLong() string {
	var b strings.Builder
	b.WriteString(`Write to standard output the file by which a cluster is asked for a job: N nodes with a
muster each, and the command as its workers. Comments in the file say why each line is
there. It is yours to change: muster explain tells what becomes of its lines, and muster
run -f rehearses it on this machine.

KIND is one of
`)
	for _, k := range manifest.Kinds() {
		fmt.Fprintf(&b, "  %-11s %s\n", k, manifest.About(k))
	}
	b.WriteString("\nA flag that a kind has no use for is refused.")
	return b.String()
}

// typed are the names of the flags that were typed, in the order of the help.
func typed(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			names = append(names, f.Name)
		}
	})
	return names
}

// manifestFlags are the flags that make a Spec.
func manifestFlags(flags *pflag.FlagSet, s *manifest.Spec) {
	flags.SortFlags = false
	flags.IntVar(&s.Nodes, "nodes", 1, "number of nodes")
	flags.StringVarP(&s.Procs, "nproc-per-node", "n", "1", "workers on each node: a number, gpu, cpu or auto")
	flags.StringVar(&s.Image, "image", "",
		"image of the nodes' containers, with muster and the training in it; slurm: for the plug-in pyxis")
	flags.StringVar(&s.Name, "name", "train", "name of the job")
	flags.StringVar(&s.Namespace, "namespace", "", "namespace; the file names none unless given")
	flags.StringVar(&s.Queue, "queue", "", "queue in which the job waits: of Kueue, of --gang, or Slurm's QOS")
	flags.StringVar(&s.Gang, "gang", "", "who starts all pods together: "+strings.Join(manifest.Gangs, ", ")+
		" (default kueue where there is a --queue)")
	flags.IntVar(&s.Accelerators, "accelerators", 0, "accelerators of each node (default: as many as workers, where -n is a number)")
	flags.StringVar(&s.Accelerator, "accelerator", "nvidia.com/gpu", "resource by which the cluster knows accelerators")
	flags.StringVar(&s.RDMA, "rdma", "", "resource of RDMA devices and how many each node has, such as rdma/hca=1")
	flags.StringVar(&s.CPU, "cpu", "", "CPUs of each node")
	flags.StringVar(&s.Memory, "memory", "", "memory of each node, such as 512Gi")
	flags.StringVar(&s.SharedMemory, "shm", "16Gi", "size of /dev/shm in the containers")
	flags.StringVar(&s.Topology, "topology", "",
		"place all nodes within one part of the network: a label of nodes such as topology.kubernetes.io/rack; Volcano: a tier; slurm: a "+
			"number of switches")
	flags.StringArrayVar(&s.Claims, "claim", nil, "persistent volume claim and where it is mounted, CLAIM:DIR; may be given again")
	flags.StringVar(&s.CkptDir, "ckpt-dir", "", "where checkpoints are saved")
	flags.StringVar(&s.TokenSecret, "token-secret", "", "Secret that has the job's token under the key token")
	flags.IntVar(&s.Port, "http", 0, "serve probes and the job's page at this port of each pod; needs --token-secret")
	flags.BoolVar(&s.NetworkCheck, "network-check", false, "test nodes and links before the workers start")
	flags.IntVar(&s.MaxRestarts, "max-restarts", 3, "how often failed workers of a node are started anew")
	flags.IntVar(&s.BackoffLimit, "backoff-limit", 1, "how often the job's pods are made anew when it has failed all the same")
	flags.DurationVar(&s.Notice, "notice", 30*time.Second, "time between the notice that a node will be stopped and SIGTERM")
	flags.DurationVar(&s.Grace, "grace", 30*time.Second, "time between SIGTERM to the workers and SIGKILL")
	flags.DurationVar(&s.Deadline, "deadline", 0, "time that the job may take; slurm: its time limit, after which it is queued again")
	flags.StringArrayVar(&s.Env, "env", nil, "variable of the workers, NAME=VALUE; may be given again")
	flags.StringVar(&s.Partition, "partition", "", "slurm: partition")
	flags.StringVar(&s.Account, "account", "", "slurm: account")
	flags.StringArrayVar(&s.Flags, "flag", nil, "a further flag of muster run, as in --flag=--join-timeout=20m; may be given again")
}
