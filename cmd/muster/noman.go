//go:build !man

package main

import "github.com/spf13/cobra"

func buildCommands(*app) []*cobra.Command { return nil }
