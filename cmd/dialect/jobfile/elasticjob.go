package jobfile

import (
	"fmt"
	"strconv"

	"muster/launch/job"
)

const (
	// elasticPort is where DLRover's master listens.
	elasticPort = 50001
	// relaunches is how often DLRover gives a rank a new node, unless the file says it.
	relaunches = 3
)

func elasticJob(v value) {
	r, f := v.r, v.r.file
	f.port = elasticPort
	g := group{role: "worker", n: 1}
	count := relaunches
	var worker, counted value
	var all template // with the variables of all replicas
	restarts := func(n value) {
		if c, ok := n.count(0); ok {
			count, counted = c, n
			n.note(Applied, "--max-restarts: how often each node's command is started anew")
		}
	}
	v.object(fields{
		"distributionStrategy": func(s value) {
			if text, ok := s.choice("AllreduceStrategy", "ParameterServerStrategy", "CustomStrategy"); ok && text != "AllreduceStrategy" {
				s.refuse("muster starts jobs of AllreduceStrategy", "muster has no parameter servers")
				return
			}
			s.note(Applied, "all nodes do the same")
		},
		"optimizeMode":            cluster("muster changes no resources while a job runs"),
		"enableElasticScheduling": cluster("nodes come and go as dlrover-run's --nnodes in the command says"),
		"enableDynamicSharding":   cluster("the data's parts are the program's"),
		"envs":                    func(e value) { e.list(func(item value) { item.variable(&all) }) },
		"resourceLimits":          cluster("amounts of CPU, memory and the like are the cluster's to keep"),
		"brainService":            cluster("muster asks no service for a plan"),
		"suspend":                 off("the job is suspended: nothing would start"),
		"replicaSpecs": func(specs value) {
			specs.object(fields{
				"worker": func(spec value) {
					worker = spec
					spec.object(fields{
						"replicas": g.count, "restartCount": restarts, "restartCounts": restarts,
						"template":  func(t value) { g.template = t.template(known{container: "main"}) },
						"autoScale": cluster("muster changes no resources while a job runs"),
						"priority":  cluster(whySchedule), "restartTimeout": cluster("the master's, which muster does not need"),
					})
				},
				"dlrover-master": cluster("muster needs no master: the nodes meet at the first of them"),
			})
		},
	}.leave(whySchedule, "priority", "priorityClassName"))
	g.template.env = append(all.env, g.template.env...) // those of the container win, wherever they stand
	switch {
	case r.wrong != nil:
		return
	case worker.node == nil:
		v.fail("an ElasticJob that muster can run has replicaSpecs.worker")
		return
	case g.template.container.node == nil:
		worker.fail("the replicas have no template")
		return
	}
	from := counted
	if from.node == nil {
		from = worker
	}
	from.setting("max-restarts", strconv.Itoa(count))
	if p := g.template.restartPolicy; p.node != nil {
		if text, ok := p.choice("Never", "OnFailure", "Always"); ok {
			p.note(Mapped, map[string]string{
				"Never":     "a failed node is started anew by restartCount",
				"OnFailure": "a failed node is started anew, as restartCount says",
				"Always":    "a failed node is started anew, as restartCount says; one that is done is done",
			}[text])
		}
	}
	r.pods(g, v, func(i int) string { return fmt.Sprintf("%s-edljob-worker-%d", f.Name, i) })
	f.beside = func(f *File, i int, at Places) []job.Var {
		n := strconv.Itoa(len(f.Pods))
		rank := strconv.Itoa(i)
		return append(f.podLevel(i, at, len(f.Pods)),
			own("NODE_NUM", n), own("NODE_RANK", rank), own("NODE_ID", rank), own("NODE_TYPE", "worker"),
			own("WORKER_NUM", n), own("WORKER_RANK", rank), own("WORKER_ID", rank), own("WORKER_TYPE", "worker"),
			own("ELASTIC_JOB_NAME", f.Name), own("POD_NAME", f.Pods[i].Name), own("POD_IP", at.host(i)),
			own("DLROVER_MASTER_ADDR", at.master()), own("MUSTER_RDZV_CONF", "is_host="+strconv.FormatBool(i == 0)))
	}
}
