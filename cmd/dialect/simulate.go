package dialect

import (
	"errors"
	"fmt"
	"strconv"

	"muster/internal/errhint"
	"muster/launch/job"
)

// settleSimulation makes a job of several nodes of one whose nodes are simulated, and refuses what only real ones have.
func settleSimulation(r *Request, words *ownWords, wrong *problems) {
	n, j, m := r.SimulateNodes, &r.Job, &r.Job.Meeting
	if n == 0 {
		return
	}
	word := words.SimulateNodes
	if j.Fake == "" {
		wrong.add(errhint.With(fmt.Errorf("cannot use %s without a fake accelerator: all nodes would share the real ones",
			word.written()),
			"give --accelerator fake:FILE, or set MUSTER_FAKE=FILE"))
	}
	nodes := words.NNodes
	switch {
	case !nodes.given:
		j.Nodes = job.Range{Min: n, Max: n}
		r.tell(&words.NNodes, strconv.Itoa(n), word.source)
	case n < j.Nodes.Min || n > j.Nodes.Max+m.Spares:
		wrong.add(fmt.Errorf("cannot use %s with %s: the job would not have that many nodes", word.written(),
			nodes.written()))
	}
	for _, of := range []value{words.NodeRank, words.MasterAddr, words.MasterPort, words.LocalAddr} {
		if of.source.Kind == job.FromFlag {
			wrong.add(fmt.Errorf("cannot use %s with --simulate-nodes: it is for one of the nodes, and they are all started here",
				of.written()))
		}
	}
	if words.Rdzv.text == "" {
		m.Backend = backendMuster
	} else if m.Backend == backendStatic {
		wrong.add(errors.New("cannot use a static rendezvous with --simulate-nodes: leave --rdzv out"))
	}
	m.NodeRank, m.Host, m.Port, m.LocalAddr = -1, "", 0, "" // a platform's variables are for this machine, not for its nodes
}
