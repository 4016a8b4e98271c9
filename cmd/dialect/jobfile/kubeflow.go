package jobfile

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"muster/launch/job"
)

// maxReplicas bounds the nodes of a job.
const maxReplicas = 10_000

// group is a group of equal replicas.
type group struct {
	role     string
	n        int
	replicas value // where the number stands; its path says what it is called
	template template
	policy   value
}

// count reads a group's number of replicas.
func (g *group) count(v value) {
	n, ok := v.count(0)
	switch {
	case !ok:
	case n == 0:
		v.fail("a job with no replica has nothing to run: give a number from 1")
	case n > maxReplicas:
		v.fail("give a number up to %d", maxReplicas)
	default:
		g.n, g.replicas = n, v
		v.note(Mapped, wordNodes(n)+": on this machine, or on --hosts")
	}
}

func wordNodes(n int) string {
	if n == 1 {
		return "a node"
	}
	return strconv.Itoa(n) + " nodes"
}

// pods adds the group's replicas, each with the name that the cluster would give it.
func (r *reader) pods(g group, from value, name func(i int) string) {
	source := from.source()
	if g.replicas.node != nil {
		source = g.replicas.source()
	}
	t := g.template
	native := r.unwrap(&t)
	if len(r.file.Pods) > 0 && native != r.file.Native && r.wrong == nil {
		from.refuse("give all pods muster run, or none", "some pods run muster run, and others do not")
	}
	r.file.Native = native
	for i := range g.n {
		r.file.Pods = append(r.file.Pods, r.pod(t, g.role, name(i), i, source))
	}
	if t.port != 0 {
		r.file.port = t.port
	}
}

// pod makes a pod of a template.
func (r *reader) pod(t template, role, name string, i int, source job.Source) Pod {
	if c := t.command.node; len(r.Args) > 0 && c != nil && slices.Contains(t.argv, "-c") && slices.Contains(shells, path.Base(t.argv[0])) {
		t.command.refuse("give the command's arguments with --set "+t.command.path+"=…",
			"arguments cannot be put behind a script that a shell has by -c")
	}
	if len(t.argv) > 1 && path.Base(t.argv[0]) == "muster" {
		if !slices.Contains(launchers, t.argv[1]) {
			t.command.refuse("give what stands behind muster "+t.argv[1]+" and its flags as the command",
				"muster %s in a node of muster's is a job by itself: it does not look for the others", t.argv[1])
		}
		t.argv = t.argv[1:]
	}
	return Pod{
		Role: role, Index: i, Name: name, Accelerators: t.accelerators, Vendor: t.vendor, Resource: t.resource, Source: source,
		Argv: slices.Concat(t.argv, t.args, r.Args), env: t.env, lists: t.lists,
	}
}

// runPolicy reads what training operators share, and more that only some have.
func runPolicy(s *rules, cleanField string, more fields) func(value) {
	return func(v value) {
		known := fields{
			"activeDeadlineSeconds": deadline,
			"backoffLimit":          s.backoffLimit,
			"suspend":               off("the job is suspended: nothing would start"),
			cleanField:              clean("All", "Running", "None"),
		}.leave(whyAfter, "ttlSecondsAfterFinished").leave(whySchedule, "schedulingPolicy", "managedBy")
		maps.Copy(known, more)
		v.object(known)
	}
}

// kubeflowRetried are the exit codes for which the training operator restarts a pod under ExitCode.
const kubeflowRetried = ">=128"

// pytorchPort is where the pods of a PyTorchJob meet unless a port is named so.
const pytorchPort = 23456

func pytorchJob(v value) {
	r, f := v.r, v.r.file
	var s rules
	groups := map[string]*group{}
	f.port = pytorchPort
	f.shape.procs = "auto"
	var counted, elastic, restarts value
	procs := func(p value) {
		if text, ok := p.word(); ok && p.procs(text, "auto", "gpu", "cpu") {
			f.shape.procs = text
			p.note(Mapped, "PET_NPROC_PER_NODE of the node's torchrun")
			counted = p
		}
	}
	low, high := 0, 0
	replica := func(role string) func(value) {
		return func(spec value) {
			g := &group{role: strings.ToLower(role), n: 1}
			groups[role] = g
			spec.object(fields{
				"replicas":      g.count,
				"restartPolicy": func(p value) { g.policy = p },
				"template":      func(t value) { g.template = t.template(known{container: "pytorch", port: "pytorchjob-port"}) },
			})
			if g.template.container.node == nil && r.wrong == nil {
				spec.fail("the replicas have no template")
			}
			g.ownPolicy()
			if role == "Master" && g.n > 1 {
				g.replicas.fail("a PyTorchJob has one master")
			}
			s.same(g.policy)
		}
	}
	v.object(fields{
		"pytorchReplicaSpecs": func(specs value) {
			specs.object(fields{"Master": replica("Master"), "Worker": replica("Worker")})
		},
		"nprocPerNode": procs,
		"runPolicy":    runPolicy(&s, "cleanPodPolicy", nil),
		"elasticPolicy": func(e value) {
			elastic = e
			f.shape.backend = "c10d"
			e.object(fields{
				"minReplicas":  func(n value) { low, _ = n.count(1); n.note(Mapped, "the least of PET_NNODES") },
				"maxReplicas":  func(n value) { high, _ = n.count(1); n.note(Mapped, "the most of PET_NNODES") },
				"nProcPerNode": procs,
				"maxRestarts": func(n value) {
					if count, ok := n.count(0); ok {
						f.shape.restarts, restarts = strconv.Itoa(count), n
						n.note(Mapped, "PET_MAX_RESTARTS of the node's torchrun")
					}
				},
				"rdzvBackend": func(b value) { b.backend("c10d", "etcd", "etcd-v2") },
				"rdzvHost":    func(h value) { f.shape.endpoint, _ = h.text(); h.note(Mapped, "where torchrun's nodes meet by etcd") },
				"rdzvPort": func(p value) {
					if n, ok := p.count(1); ok {
						f.port = n
						p.note(Mapped, "the port at which nodes on hosts meet; a rehearsal takes a free one")
					}
				},
				"rdzvId": func(id value) { id.text(); id.note(Mapped, "the nodes' torchrun meets under the name of the job") },
				"rdzvConf": func(c value) {
					var conf []string
					c.list(func(item value) {
						var key, text string
						item.object(fields{
							"key":   func(k value) { key, _ = k.text() },
							"value": func(t value) { text, _ = t.word() },
						})
						conf = append(conf, key+"="+text)
					})
					f.shape.conf = strings.Join(conf, ",")
					c.note(Mapped, "PET_RDZV_CONF of the node's torchrun")
				},
				"standalone": func(b value) {
					if on, ok := b.boolean(); ok && on {
						b.refuse("leave it out", "standalone nodes would be so many jobs")
					}
				},
				"metrics": cluster("muster scales no replicas by measures"),
			})
		},
	})
	if r.wrong != nil {
		return
	}
	master, workers := groups["Master"], groups["Worker"]
	if elastic.node != nil && master != nil {
		elastic.refuse("name all replicas Worker, as the operator wants it", "a job with a Master has a fixed number of nodes")
		return
	}
	for _, g := range []*group{master, workers} {
		if g != nil {
			r.pods(*g, v, func(i int) string { return fmt.Sprintf("%s-%s-%d", f.Name, g.role, i) })
		}
	}
	if counted.node == nil {
		counted = value{r, v.node, v.path + ".nprocPerNode"}
		counted.noteValue(Mapped, "auto",
			"not given: PET_NPROC_PER_NODE of the node's torchrun, which counts accelerators, and CPUs where there are none")
	}
	counted.told("nproc-per-node", f.shape.procs)
	if restarts.node != nil {
		restarts.told("max-restarts", f.shape.restarts)
	}
	n := len(f.Pods)
	f.shape.nnodes = strconv.Itoa(n)
	if elastic.node != nil && n > 0 {
		elastic.rangeOf(low, high, n)
	}
	s.settle("OnFailure", kubeflowRetried, "ExitCode")
	if master != nil {
		v.quorum("rank0", "any")
	}
	f.beside = func(f *File, i int, at Places) []job.Var {
		vars := f.pet(i, at, master != nil)
		if master != nil {
			world := len(f.Pods)
			if n, err := strconv.Atoi(f.shape.procs); err == nil {
				world *= n
			}
			vars = append(vars, f.podLevel(i, at, world)...)
		}
		return vars
	}
}

// procs checks the number of workers of a node.
func (v value) procs(text string, words ...string) bool {
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= job.MaxProcs || slices.Contains(words, text) {
		return true
	}
	v.fail("give a number from 1 to %d, or one of %s", job.MaxProcs, strings.Join(words, ", "))
	return false
}

// backend reads how nodes of torchrun meet.
func (v value) backend(words ...string) {
	text, ok := v.choice(words...)
	if !ok {
		return
	}
	v.r.file.shape.backend = text
	if text == "c10d" {
		v.note(Mapped, "the nodes' torchrun meets at the first node")
		return
	}
	v.note(Mapped, "the nodes' torchrun meets by etcd")
}

// rangeOf sets how many nodes an elastic job of n nodes has.
func (v value) rangeOf(low, high, n int) {
	f := v.r.file
	if low == 0 {
		low = n
	}
	if high == 0 {
		high = max(n, low)
	}
	switch {
	case low > high:
		v.fail("the least number of replicas, %d, is greater than the most, %d", low, high)
	case n < low || n > high:
		v.fail("%d replicas are not in the range from %d to %d", n, low, high)
	}
	f.shape.elastic, f.shape.least = low < high, low
	f.shape.nnodes = strconv.Itoa(low)
	if low < high {
		f.shape.nnodes += ":" + strconv.Itoa(high)
		v.setting("restart-scope", "node") // the other nodes' torchrun takes it in again
	}
	if f.shape.backend != "c10d" && f.shape.endpoint == "" {
		v.refuse("name it, as in --set "+v.path+".rdzvHost=HOST, or let them meet by c10d: --set "+v.path+".rdzvBackend=c10d",
			"nodes that meet by %s need its host", f.shape.backend)
	}
}

// ownPolicy takes the policy of the pods' template where the replicas have none.
func (g *group) ownPolicy() {
	pod := g.template.restartPolicy
	switch {
	case pod.node == nil:
	case g.policy.node == nil:
		g.policy = pod
	default:
		pod.note(Mapped, "overridden by "+g.policy.path)
	}
}

// pet are torchrun's flags as variables.
func (f *File) pet(i int, at Places, ranked bool) []job.Var {
	vars := []job.Var{own("PYTHONUNBUFFERED", "1"), own("PET_NNODES", f.shape.nnodes), own("PET_NPROC_PER_NODE", f.shape.procs)}
	conf := []string{}
	if f.shape.conf != "" {
		conf = append(conf, f.shape.conf)
	}
	if f.shape.backend != "" {
		endpoint := at.master()
		if f.shape.backend == "c10d" {
			conf = append(conf, "is_host="+strconv.FormatBool(i == 0))
		} else {
			endpoint = f.shape.endpoint + ":" + strconv.Itoa(f.port)
		}
		vars = append(vars, own("PET_RDZV_BACKEND", f.shape.backend), own("PET_RDZV_ENDPOINT", endpoint), own("PET_RDZV_ID", f.Name))
	}
	if len(conf) > 0 {
		vars = append(vars, own("PET_RDZV_CONF", strings.Join(conf, ",")))
	}
	if f.shape.restarts != "" {
		vars = append(vars, own("PET_MAX_RESTARTS", f.shape.restarts))
	}
	if ranked {
		vars = append(vars, own("PET_MASTER_ADDR", at.host(0)), own("PET_MASTER_PORT", strconv.Itoa(at.Port)),
			own("PET_NODE_RANK", strconv.Itoa(i)))
	}
	return vars
}

// podLevel are the variables by which operators number pods.
func (f *File) podLevel(i int, at Places, world int) []job.Var {
	return []job.Var{
		own("MASTER_ADDR", at.host(0)), own("MASTER_PORT", strconv.Itoa(at.Port)), own("RANK", strconv.Itoa(i)),
		own("WORLD_SIZE", strconv.Itoa(world)),
	}
}

// trainJob reads a job of Kubeflow's Trainer. Of the runtime that it names the file has nothing: it is taken for one of
// PyTorch.
func trainJob(v value) {
	r, f := v.r, v.r.file
	f.port, f.shape.procs = 29500, "auto"
	g := group{role: "node", n: 1}
	var trainer, counted value
	v.object(fields{
		"runtimeRef": func(ref value) {
			ref.object(fields{
				"name": func(n value) {
					if text, ok := n.text(); ok && (strings.Contains(text, "mpi") || strings.Contains(text, "deepspeed")) {
						n.refuse("name the hosts to muster mpirun", "muster knows runtimes of torchrun, and %s is one of MPI", text)
						return
					}
					n.note(Mapped, "taken for a runtime of torchrun")
				},
				"apiGroup": func(a value) { a.text() }, "kind": func(k value) { k.choice("TrainingRuntime", "ClusterTrainingRuntime") },
			})
		},
		"trainer": func(t value) {
			trainer = t
			g.template.container = t
			g.template.command.r = r
			t.object(fields{
				"image": cluster(whyImage),
				"command": func(c value) {
					g.template.argv = g.template.words(c)
					g.template.command = c
					c.note(Applied, "the node's command")
				},
				"args": func(a value) {
					g.template.args = g.template.words(a)
					a.note(Applied, "arguments of the node's command")
				},
				"env":              func(e value) { e.list(func(item value) { item.variable(&g.template) }) },
				"numNodes":         g.count,
				"resourcesPerNode": func(res value) { res.resources(&g.template) },
				"numProcPerNode": func(p value) {
					if text, ok := p.word(); ok && p.procs(text, "auto", "gpu", "cpu") {
						f.shape.procs, counted = text, p
						p.note(Mapped, "PET_NPROC_PER_NODE of the node's torchrun")
					}
				},
			})
			if len(g.template.argv) == 0 {
				t.refuse("name the command, as in --set '"+t.path+".command=[torchrun, train.py]'",
					"the trainer has no command, and that of its runtime is not in the file")
			}
		},
		"suspend":     off("the job is suspended: nothing would start"),
		"initializer": cluster("data and models are fetched by the cluster: fetch them yourself"),
	}.leave(whyLabels, "labels", "annotations").leave(whySchedule, "managedBy").leave(whyPods, "podTemplateOverrides", "podSpecOverrides"))
	if trainer.node == nil && r.wrong == nil {
		v.fail("a TrainJob that muster can run has a trainer with a command")
	}
	if r.wrong != nil {
		return
	}
	if f.shape.procs == "auto" && g.template.accelerators == 0 {
		f.shape.procs = "1" // as the runtime does where no accelerator is asked for
	}
	r.pods(g, v, func(i int) string { return fmt.Sprintf("%s-node-0-%d", f.Name, i) })
	if counted.node == nil {
		counted = trainer
	}
	counted.told("nproc-per-node", f.shape.procs)
	f.shape.nnodes = strconv.Itoa(g.n)
	f.beside = func(f *File, i int, at Places) []job.Var {
		return append(f.pet(i, at, true), own("JOB_COMPLETION_INDEX", strconv.Itoa(i)))
	}
}

func mpiJob(v value) {
	r, f := v.r, v.r.file
	var s rules
	groups := map[string]*group{}
	f.shape.slots, f.shape.mpi = 1, "OpenMPI"
	atLauncher := false
	replica := func(role string) func(value) {
		return func(spec value) {
			g := &group{role: strings.ToLower(role), n: 1}
			groups[role] = g
			spec.object(fields{
				"replicas":      g.count,
				"restartPolicy": func(p value) { g.policy = p },
				"template":      func(t value) { g.template = t.template(known{noCommand: role == "Worker", idle: role == "Worker"}) },
			})
			g.ownPolicy()
			if role == "Launcher" && g.n > 1 {
				g.replicas.fail("an MPIJob has one launcher")
			}
		}
	}
	v.object(fields{
		"mpiReplicaSpecs": func(specs value) {
			specs.object(fields{"Launcher": replica("Launcher"), "Worker": replica("Worker")})
		},
		"slotsPerWorker": func(n value) {
			f.shape.slots, _ = n.count(1)
			n.note(Applied, "slots of each node in the hostfile")
		},
		"runLauncherAsWorker": func(b value) { atLauncher, _ = b.boolean(); b.note(Applied, "the launcher's node is one of the hosts") },
		"mpiImplementation": func(m value) {
			f.shape.mpi, _ = m.choice("OpenMPI", "Intel", "MPICH")
			m.note(Mapped, "the variable that names the hostfile")
		},
		"runPolicy":              runPolicy(&s, "cleanPodPolicy", nil),
		"sshAuthMountPath":       cluster("ssh takes the keys of the user who starts muster"),
		"launcherCreationPolicy": cluster("the launcher waits for its hosts"),
	})
	if r.wrong != nil {
		return
	}
	launcher, workers := groups["Launcher"], groups["Worker"]
	if launcher == nil {
		v.fail("an MPIJob has a Launcher")
		return
	}
	if workers != nil && workers.policy.node != nil {
		workers.policy.note(Mapped, "workers of MPI are started by the launcher, and end with it")
	}
	s.same(launcher.policy)
	s.settle("OnFailure", kubeflowRetried)
	first := r.pod(launcher.template, "launcher", f.Name+"-launcher", 0, v.source())
	f.Launcher = &first
	if atLauncher || workers == nil {
		one := *launcher
		r.pods(one, v, func(int) string { return f.Name + "-launcher" })
	}
	if workers != nil {
		r.pods(*workers, v, func(i int) string { return fmt.Sprintf("%s-worker-%d", f.Name, i) })
		f.unread(workers.template)
	}
	f.mpiFiles()
}

// mpiFiles are what the operator of MPI tells a launcher.
func (f *File) mpiFiles() {
	const hostfile, script = "/etc/mpi/hostfile", "/etc/mpi/discover_hosts.sh"
	f.files = func(at Places) map[string]string {
		var list, echo strings.Builder
		echo.WriteString("#!/bin/sh\n")
		for i := range f.Pods {
			form := "%s slots=%d\n"
			if f.shape.mpi != "OpenMPI" {
				form = "%s:%d\n"
			}
			fmt.Fprintf(&list, form, at.host(i), f.shape.slots)
			fmt.Fprintf(&echo, "echo %s:%d\n", at.host(i), f.shape.slots)
		}
		return map[string]string{hostfile: list.String(), script: echo.String()}
	}
	f.beside = func(f *File, _ int, _ Places) []job.Var {
		vars := []job.Var{own("K_MPI_JOB_ROLE", "launcher")}
		switch f.shape.mpi {
		case "Intel":
			vars = append(vars, own("I_MPI_HYDRA_HOST_FILE", hostfile), own("I_MPI_PERHOST", strconv.Itoa(f.shape.slots)))
		case "MPICH":
			vars = append(vars, own("HYDRA_HOST_FILE", hostfile))
		default:
			vars = append(vars, own("OMPI_MCA_orte_default_hostfile", hostfile), own("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
				own("OMPI_MCA_orte_set_default_slots", strconv.Itoa(f.shape.slots)))
		}
		return vars
	}
}
