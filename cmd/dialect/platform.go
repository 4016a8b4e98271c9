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
func askPlatform(inv Invocation, env environ, words *ownWords, wrong *problems) (*platform.Facts, []string) {
	word, asked := words.Platform, words.Platform.given
	if !asked {
		word.text = platform.Auto
	}
	if words.SimulateNodes.given || env[simulated] != "" {
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
		wrong.add(fmt.Errorf("cannot use %s: %w", word.written(), err))
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
func arranged(words *ownWords) bool {
	nodes, err := parseNodes(words.NNodes.text)
	return words.NNodes.given &&
		(err != nil || nodes.Max <= 1 || words.Rdzv.given || words.NodeRank.given && words.MasterAddr.given)
}

// fromPlatform fills words with what the platform says. How nodes meet is taken as a whole: somebody who says where has
// another place in mind than the platform.
func fromPlatform(facts *platform.Facts, words *ownWords) {
	fill := func(word *value, v platform.Value) {
		if v.Text == "" || word.given {
			return
		}
		source := job.Source{Kind: job.FromPlatform, Name: v.From}
		if v.Derived {
			source.Name += derived
		}
		word.say(v.Text, source)
	}
	fill(&words.NNodes, facts.Nodes)
	fill(&words.NProcPerNode, facts.Procs)
	nodes, err := parseNodes(words.NNodes.text)
	if err != nil || nodes.Max <= 1 { // the first is refused elsewhere; one node meets nobody
		return
	}
	fill(&words.RunID, facts.RunID)
	meet := func(at platform.Value) {
		fill(&words.Rdzv, at)
		// The place is the job's own, so that any name will do: torchrun's where it has none.
		fill(&words.RunID, platform.Value{Text: "none", From: at.From, Derived: true})
	}
	placed := elsewhere(words.NodeRank) || elsewhere(words.MasterAddr)
	switch {
	case words.Rdzv.given:
		fill(&words.NodeRank, facts.NodeRank)
		return
	case facts.Rendezvous.Text != "" && !placed:
		meet(facts.Rendezvous)
		fill(&words.LocalAddr, facts.LocalAddr)
		fill(&words.NodeRank, facts.NodeRank)
		return
	case nodes.Min < nodes.Max && !placed && facts.MasterAddr.Text != "":
		// Nodes that come and go have no fixed ranks, and keep theirs where they can: they meet where node 0 is at first.
		at := facts.MasterAddr
		at.Text, at.Derived = "c10d://"+strings.TrimSuffix(job.Endpoint{Host: at.Text}.String(), ":0"), true
		if port := facts.MasterPort.Text; port != "" {
			at.Text += ":" + port
		}
		meet(at)
		fill(&words.NodeRank, facts.NodeRank)
		return
	}
	fill(&words.NodeRank, facts.NodeRank)
	if !words.MasterAddr.given { // else the port is of another place
		fill(&words.MasterPort, facts.MasterPort)
	}
	fill(&words.MasterAddr, facts.MasterAddr)
}

// elsewhere reports whether a flag was given by somebody else than the platform. Kubeflow sets PET_ variables: with a
// master and an elastic policy fixed ranks as well as a rendezvous, and torchrun takes the latter.
func elsewhere(word value) bool {
	return word.given && !strings.HasPrefix(word.source.Name, petPrefix)
}
