package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"muster/launch/hosts"
	"muster/launch/node"
)

func newAgentCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    hosts.AgentCommand,
		Short:  "Run a node's part of a job for a launcher that speaks through standard input and output",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return a.agent(cmd.Context()) },
	}
}

func (a *app) agent(ctx context.Context) error {
	return hosts.RunAgent(ctx, hosts.AgentConfig{
		Stdin: a.stdin, Stdout: a.stdout, Environ: a.environ, Version: a.version, Hostname: hostname(),
		Guardian: []string{"/proc/self/exe", guardianArg}, Exit: os.Exit,
		Here: func(s hosts.Surroundings) node.Here {
			node := newApp(s.Environ, s.Stdin, s.Stdout, s.Stderr, s.Name)
			node.argv, node.version, node.token, node.logsGo, node.console.Format = a.argv, a.version, s.Token, s.LogsGo, s.LogFormat
			return node
		},
	})
}
