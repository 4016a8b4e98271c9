//go:build man

package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"muster/cmd/dialect"
)

// buildCommands are the commands that only building muster needs. The tag keeps the converter out of the binary.
func buildCommands(a *app) []*cobra.Command {
	return []*cobra.Command{{
		Use:    "man DIR",
		Short:  "Write the man pages to DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			literally(root)
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "muster " + a.version}, args[0])
		},
	}}
}

// literally keeps the line breaks of help texts, which are laid out for a terminal.
func literally(cmd *cobra.Command) {
	if dialect.Named(cmd.Name()) {
		cmd.Long = dialect.HelpAll(cmd.Name())
	}
	if !dialect.Named(cmd.Name()) {
		cmd.Long += "\n" + exitHelp(cmd)
	}
	cmd.Long = "```\n" + strings.TrimSpace(cmd.Long) + "\n```"
	for _, c := range cmd.Commands() {
		literally(c)
	}
}
