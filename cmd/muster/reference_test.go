package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"muster/cmd/dialect"
)

var update = flag.Bool("update", false, "rewrite docs/reference")

const (
	referenceDir  = "../../docs/reference"
	referenceHead = "<!-- Written from the tables of --help: go test ./cmd/muster -run 'TestReferencePages$' -update -->\n\n"
)

// otherNames are commands that read what another one reads: they are named on its page.
var otherNames = map[string]string{
	"torch.distributed.run": "torchrun", "mpiexec": "mpirun", "accelerate-launch": "accelerate",
	"accelerate.commands.launch": "accelerate", "colossalairun": "colossalai",
}

// docs/reference says of each command what its --help says.
func TestReferencePages(t *testing.T) {
	t.Parallel()
	root := newRootCmd(newApp(nil, nil, os.Stdout, os.Stderr))
	pages := map[string]string{}
	index := map[bool][]string{}
	for _, cmd := range root.Commands() {
		name := cmd.Name()
		if cmd.Hidden || name == "help" || name == "completion" || otherNames[name] != "" { // completion's text is cobra's own
			continue
		}
		var page strings.Builder
		page.WriteString(referenceHead)
		launches := dialect.Named(name)
		if launches {
			launcherReference(&page, cmd)
		} else {
			commandReference(&page, cmd, "#", "")
		}
		pages[name+".md"] = strings.TrimSpace(page.String()) + "\n"
		index[launches] = append(index[launches], fmt.Sprintf("| [`muster %s`](%s.md) | %s |\n", name, name, markdown(cmd.Short)))
	}
	pages["README.md"] = referenceHead + `# Reference of the commands

These pages say what ` + "`--help`" + ` says. Variables that workers get: [environment](../environment.md). Exit statuses:
[failures](../failures.md#exit-status).

## Launchers

What is the same as in the launcher that each of them replaces, and what is not: [moving](../how-to/moving.md).

| command | |
| --- | --- |
` + strings.Join(index[true], "") + `
## Other commands

| command | |
| --- | --- |
` + strings.Join(index[false], "")
	for name, want := range pages {
		path := filepath.Join(referenceDir, name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is not what --help says, %v: go test ./cmd/muster -run 'TestReferencePages$' -update", name, err)
		}
	}
	there, err := os.ReadDir(referenceDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range there {
		if pages[entry.Name()] == "" {
			t.Errorf("%s is the page of no command", entry.Name())
		}
	}
}

// launcherReference is the page of a command that starts workers.
func launcherReference(page *strings.Builder, cmd *cobra.Command) {
	name := cmd.Name()
	fmt.Fprintf(page, "# muster %s\n\n%s.\n", name, markdown(cmd.Short))
	var others []string
	for other, of := range otherNames {
		if of == name {
			others = append(others, "`muster "+other+"`")
		}
	}
	if slices.Sort(others); len(others) > 0 {
		fmt.Fprintf(page, "\nThe same under another name: %s.\n", strings.Join(others, ", "))
	}
	lines := dialect.HelpLines(name)
	usage, about, _ := strings.Cut(dialect.HelpAll(name), "\n\n")
	about, _, _ = strings.Cut(about, "\n"+lines[0].Group+":\n")
	fmt.Fprintf(page, "\n```text\n%s\n```\n\n%s\n", usage, markdown(strings.TrimSpace(about)))
	if name != "run" {
		page.WriteString("\nFlags of [`muster run`](run.md) may stand in front of the launcher's name, if they do not say what to run.\n")
	}
	group := ""
	for _, line := range lines {
		if line.Group != group {
			group = line.Group
			fmt.Fprintf(page, "\n## %s\n\n| flag | |\n| --- | --- |\n", markdown(group))
		}
		fmt.Fprintf(page, "| `%s` | %s |\n", strings.ReplaceAll(line.Names, "|", `\|`), markdown(line.Text))
	}
	exitReference(page, dialect.ExitStatusHelp)
}

// commandReference is the page of another command, with those below it. above are the exit statuses that the page has
// told already.
func commandReference(page *strings.Builder, cmd *cobra.Command, level, above string) {
	fmt.Fprintf(page, "%s %s\n\n", level, cmd.CommandPath())
	long := strings.TrimSpace(cmd.Long)
	if long == "" {
		long = cmd.Short + "."
	}
	for paragraph := range strings.SplitSeq(long, "\n\n") {
		if strings.HasPrefix(paragraph, " ") || strings.Contains(paragraph, "\n ") {
			fmt.Fprintf(page, "```text\n%s\n```\n\n", strings.Trim(paragraph, "\n"))
		} else {
			page.WriteString(markdown(paragraph) + "\n\n")
		}
	}
	if cmd.Runnable() {
		fmt.Fprintf(page, "```text\n%s\n```\n\n", cmd.UseLine())
	}
	if cmd.Example != "" {
		fmt.Fprintf(page, "Examples:\n\n```text\n%s\n```\n\n", cmd.Example)
	}
	cmd.InitDefaultHelpFlag()
	page.WriteString("| flag | |\n| --- | --- |\n")
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		names := "--" + f.Name
		if f.Shorthand != "" {
			names = "-" + f.Shorthand + ", " + names
		}
		arg, usage := pflag.UnquoteUsage(f)
		if f.DefValue != "" && !slices.Contains([]string{"false", "0", "[]", "0s"}, f.DefValue) {
			usage += " (default: " + f.DefValue + ")"
		}
		fmt.Fprintf(page, "| `%s` | %s |\n", strings.ReplaceAll(strings.TrimSpace(names+" "+arg), "|", `\|`), markdown(usage))
	})
	if exitHelp(cmd) != above {
		exitReference(page, exitHelp(cmd))
	}
	for _, below := range cmd.Commands() {
		if !below.Hidden && below.Name() != "help" {
			page.WriteString("\n")
			commandReference(page, below, "##", exitHelp(cmd))
		}
	}
}

// exitReference is the table of exit statuses at the end of a help text.
func exitReference(page *strings.Builder, help string) {
	fmt.Fprintf(page, "\n```text\n%s\n```\n", strings.TrimSpace(help))
}

// markdown is a text of a help in which nothing is markup.
func markdown(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "`", "\\`", "[", `\[`, "]", `\]`).Replace(text)
}
