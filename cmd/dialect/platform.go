package dialect

import (
	"fmt"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/internal/platform"
	"muster/launch/job"
)

// simulated is set for a muster that is one of the nodes of a simulation: what this machine's platform says is not
// about them.
const simulated = ownPrefix + "SIMULATED"

// askPlatform looks for the platform that started this process, and lets it say what words leave open: they are the
// settings that were given in any other way, and get those that the platform fills. It returns nil where no platform
// is.
//
// Where the words say all of how many nodes meet and where, somebody else than the platform arranges the job, and what
// is wrong with the platform's variables is only worth a warning.
func askPlatform(inv Invocation, env environ, words map[string]given, wrong *problems) (*platform.Facts, []string) {
	word, asked := words["platform"]
	if !asked {
		word.text = platform.Auto
	}
	if _, simulation := words["simulate-nodes"]; simulation || env[simulated] != "" {
		return nil, nil
	}
	facts, err := platform.Detect(platform.Input{
		Environ: env, Files: inv.Machine.Files, Hostname: inv.Machine.Hostname, OwnAddr: inv.Machine.OwnAddr,
	}, word.text)
	arranged := arranged(words) || hosted(words)
	switch {
	case err != nil && asked && !slices.Contains(append(platform.Names(), platform.Auto, platform.None), word.text):
		return nil, nil // the setting itself refuses it
	case err != nil && asked && word.text != platform.Auto:
		wrong.add(fmt.Errorf("cannot use %s: %w", word.written("platform"), err))
		return nil, nil
	case err != nil && arranged:
		return nil, []string{fmt.Sprintf("no platform is taken into account: %v", err)}
	case err != nil:
		wrong.add(errhint.With(err,
			"correct it; or give --platform none to take no platform's variables into account, or --nnodes and how the nodes meet"))
		return nil, nil
	case facts.Name == "":
		return nil, nil
	case facts.Problem != nil && !arranged:
		wrong.add(errhint.With(fmt.Errorf("cannot start a node of this job (platform %s): %s", facts.Name, facts.Problem.Why),
			facts.Problem.Hint))
	case facts.Problem == nil && !hosted(words): // else the hosts say how many nodes there are, and muster where they meet
		fromPlatform(&facts, words)
	}
	return &facts, nil
}

// arranged reports whether words say how many nodes there are and, where they are several, how they meet.
func arranged(words map[string]given) bool {
	has := func(flag string) bool { _, ok := words[flag]; return ok }
	nodes, err := parseNodes(words["nnodes"].text)
	return has("nnodes") && (err != nil || nodes.Max <= 1 || has("rdzv") || has("node-rank") && has("master-addr"))
}

// fromPlatform fills words with what the platform says. How nodes meet is taken as a whole: somebody who says where has
// another place in mind than the platform.
func fromPlatform(facts *platform.Facts, words map[string]given) {
	has := func(flag string) bool { _, ok := words[flag]; return ok }
	fill := func(flag string, v platform.Value) {
		if v.Text == "" || has(flag) {
			return
		}
		source := job.Source{Kind: job.FromPlatform, Name: v.From}
		if v.Derived {
			source.Name += derived
		}
		words[flag] = given{text: v.Text, source: source}
	}
	fill("nnodes", facts.Nodes)
	fill("nproc-per-node", facts.Procs)
	nodes, err := parseNodes(words["nnodes"].text)
	if err != nil || nodes.Max <= 1 { // the first is refused elsewhere; one node meets nobody
		return
	}
	fill("run-id", facts.RunID)
	meet := func(at platform.Value) {
		fill("rdzv", at)
		// The place is the job's own, so that any name will do: torchrun's where it has none.
		fill("run-id", platform.Value{Text: "none", From: at.From, Derived: true})
	}
	placed := elsewhere(words, "node-rank") || elsewhere(words, "master-addr")
	switch {
	case has("rdzv"):
		fill("node-rank", facts.NodeRank)
		return
	case facts.Rendezvous.Text != "" && !placed:
		meet(facts.Rendezvous)
		fill("local-addr", facts.LocalAddr)
		fill("node-rank", facts.NodeRank)
		return
	case nodes.Min < nodes.Max && !placed && facts.MasterAddr.Text != "":
		// Nodes that come and go have no fixed ranks, and keep theirs where they can: they meet where node 0 is at first.
		at := facts.MasterAddr
		at.Text, at.Derived = "c10d://"+strings.TrimSuffix(job.Endpoint{Host: at.Text}.String(), ":0"), true
		if port := facts.MasterPort.Text; port != "" {
			at.Text += ":" + port
		}
		meet(at)
		fill("node-rank", facts.NodeRank)
		return
	}
	fill("node-rank", facts.NodeRank)
	if !has("master-addr") { // else the port is of another place
		fill("master-port", facts.MasterPort)
	}
	fill("master-addr", facts.MasterAddr)
}

// elsewhere reports whether a flag was given by somebody else than the platform. Kubeflow sets PET_ variables: with a
// master and an elastic policy fixed ranks as well as a rendezvous, and torchrun takes the latter.
func elsewhere(words map[string]given, flag string) bool {
	word, ok := words[flag]
	return ok && !strings.HasPrefix(word.source.Name, petPrefix)
}
