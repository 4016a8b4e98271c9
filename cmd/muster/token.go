package main

import (
	"github.com/spf13/cobra"

	"muster/internal/tokenfile"
)

// newTokenCmd is "muster token": it makes a job's token.
func newTokenCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "token [FILE]",
		Short: "Make a token for a job on several nodes",
		Long: `Make a job's token: 32 random bytes, as text. With FILE it goes there, and nobody else
may read that; a file that exists stays as it is. Without, it is printed.

Every node of the job gets the same one by --token-file FILE. What the nodes tell each
other is sealed with it, and connections between them are encrypted: who lacks it can
neither change what the job does nor read checkpoints on their way. A job that muster
starts itself by --hosts has one of its own and needs none. Make a new one for each job.`,
		Example: "  muster token job.token\n  muster run --nnodes 2 --run-id exp7 --rdzv muster://node1 --token-file job.token -- " +
			"python train.py",
		Annotations: map[string]string{exitAnnotation: "  0    the token was made\n" +
			"  2    usage error, FILE exists, or cannot be written\n  125  internal error of muster\n"},
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				say(a.stdout, "%s", tokenfile.New())
				return nil
			}
			return tokenfile.Write(args[0], tokenfile.New())
		},
	}
}
