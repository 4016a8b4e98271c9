package main

import (
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"muster/internal/accel"
	"muster/internal/errhint"
)

// acceleratorFlags say where a command looks for accelerators.
type acceleratorFlags struct {
	spec   string // "auto", or "fake:" and the path of a spec
	onReal bool
}

func (f *acceleratorFlags) add(flags *pflag.FlagSet, a *app) {
	def := ""
	if file := a.getenv("MUSTER_FAKE"); file != "" {
		def = "fake:" + file
	}
	flags.StringVar(&f.spec, "accelerator", def, "auto, or fake:FILE for the made-up ones of a spec [MUSTER_FAKE=FILE]")
	flags.BoolVar(&f.onReal, "fake-on-real", false, "let a fake stand in for accelerators that are really here")
}

// node is what is looked at: this machine, or one that a spec makes up in part.
type node struct {
	host string
	root accel.Root
	inv  accel.Inventory
	fake *accel.Fake // nil for this machine
}

// look finds this node's accelerators, or those that a spec makes up.
func (f *acceleratorFlags) look(a *app) (node, error) {
	n := node{host: hostname(), root: accel.Real()}
	path, made := strings.CutPrefix(f.spec, "fake:")
	switch {
	case f.spec == "" || f.spec == "auto":
		n.inv = accel.Detect(n.root, a.lookupEnv)
		return n, nil
	case !made || path == "":
		return n, errhint.Usagef("--accelerator %q: auto or fake:FILE", f.spec)
	}
	var err error
	if n.fake, err = a.loadFake(path, n.host, f.onReal); err != nil {
		return n, err
	}
	n.inv = n.fake.Detect(n.root, a.lookupEnv)
	n.root = n.fake.Root(n.root)
	return n, nil
}

// loadFake reads a spec of accelerators that are not there, and refuses it where real ones are.
func (a *app) loadFake(spec, host string, onReal bool) (*accel.Fake, error) {
	if named := a.getenv("MUSTER_FAKE_NODE"); named != "" {
		host = named // several nodes of one spec on one machine
	}
	fake, err := accel.LoadFake(spec, host)
	if err != nil {
		return nil, err
	}
	return fake, fake.CheckMachine(accel.Real(), onReal)
}

// hostname is this node's name, where it is only shown.
func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return host
}

// writeJSON writes v for programs, and so that people can read it: commands hold < and & as they are.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
