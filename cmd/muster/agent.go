package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"muster/cmd/here"
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
		Stdin: a.stdin, Stdout: a.stdout, Environ: a.here.Environ, Version: a.version, Hostname: here.Hostname(),
		Guardian: here.Guardian(), Exit: os.Exit,
		Here: func(s hosts.Surroundings) node.Here {
			h := newApp(s.Environ, s.Stdin, s.Stdout, s.Stderr).here
			h.Name, h.Token, h.LogsGo, h.Events, h.Console.Node, h.Console.Format = s.Name, s.Token, s.LogsGo, s.Events, s.Name, s.LogFormat
			h.WholeJob = s.WholeJob
			return h
		},
	})
}
