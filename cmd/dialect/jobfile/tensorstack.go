package jobfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"go.yaml.in/yaml/v3"

	"muster/launch/job"
)

// t9kRetried are the exit codes for which TensorStack restarts a replica under ExitCode.
const t9kRetried = "130,137,138,143"

// sleeping is what runs in debug mode where the file says nothing else.
var sleeping = []string{"sleep", "inf"}

// mode is what runMode says.
type mode struct {
	debug    bool
	commands map[string]template // by replicas' types
	at       value
}

// runMode reads how a job of TensorStack is run: as it is, for debugging, or not now.
func (m *mode) runMode(v value) {
	m.commands = map[string]template{}
	var debugged []func()
	specs := func(then func(item value, kind string, command template)) func(value) {
		return func(list value) {
			list.list(func(item value) {
				var kind string
				var t template
				item.object(fields{
					"type":    func(name value) { kind, _ = name.text() },
					"command": func(c value) { t.argv = t.words(c) },
					"args":    func(a value) { t.args = t.words(a) },
					"skipInitContainer": func(s value) {
						s.boolean()
						s.note(Cluster, whyPrepared)
					},
				})
				then(item, kind, t)
			})
		}
	}
	on := func(b value) {
		m.debug, _ = b.boolean()
		m.at = b
		b.note(Applied, "everything is prepared, and the debug command runs")
	}
	paused := off("the job is paused: nothing would start")
	v.object(fields{
		"debug": func(d value) {
			d.object(fields{
				"enable": on, "enabled": on,
				"replicaSpecs": func(list value) {
					list.note(Mapped, "the commands of debug mode")
					specs(func(_ value, kind string, command template) {
						debugged = append(debugged, func() { m.commands[kind] = command })
					})(list)
				},
			})
		},
		"pause": func(p value) {
			p.object(fields{
				"enabled": paused, "enable": paused,
				"resumeSpecs": func(list value) {
					specs(func(item value, _ string, t template) {
						command := slices.Concat(t.argv, t.args)
						if len(command) == 0 {
							item.note(Mapped, "muster pause, and muster resume, which starts the job's own command again")
							return
						}
						item.note(Mapped, "muster pause, and muster resume -- "+job.ShownText(shellescape.QuoteCommand(command))+
							", which all nodes run then")
					})(list)
				},
			})
		},
	})
	for _, f := range debugged {
		f()
	}
}

// run has a kind of replicas run its command of debug mode.
func (m *mode) run(kind string, t *template) {
	for _, list := range t.lists {
		list.r.file.retell(list, Mapped, "not run: debug mode runs its own command")
	}
	c := m.commands[kind]
	if len(c.argv)+len(c.args) == 0 {
		c.argv = sleeping
	}
	t.argv, t.args, t.lists = c.argv, c.args, c.lists
}

// scheduler reads nothing of what schedules a job.
func scheduler(v value) {
	v.object(fields{"t9kScheduler": cluster(whySchedule), "volcano": cluster(whySchedule), "kube": cluster(whySchedule)})
}

func pytorchTrainingJob(v value) {
	r, f := v.r, v.r.file
	f.port, f.shape.procs = 29400, "1"
	var s rules
	var m mode
	var groups []*group
	torchrun, least := false, 0
	var low value
	var extra []string
	if t := get(v.node, "torchrunConfig"); t != nil && t.Kind == yaml.MappingNode {
		if e := get(t, "enable"); e != nil {
			torchrun = strings.EqualFold(e.Value, "true")
		}
	}
	known := known{container: "python", noCommand: torchrun}
	v.object(fields{
		"replicaSpecs": func(list value) {
			list.list(func(item value) {
				g := &group{n: 1}
				groups = append(groups, g)
				item.object(fields{
					"type":          func(t value) { g.role, _ = t.text(); t.note(Mapped, "the name of the group of nodes") },
					"replicas":      g.count,
					"restartPolicy": func(p value) { g.policy = p },
					"template":      func(t value) { g.template = t.template(known) },
				})
				if g.template.container.node == nil && r.wrong == nil {
					item.fail("the replicas have no template")
				}
				g.ownPolicy()
				s.same(g.policy)
			})
		},
		"torchrunConfig": func(t value) {
			t.object(fields{
				"enable": func(b value) {
					if on, ok := b.boolean(); ok && on {
						b.note(Applied, "each node runs torchrun with the container's arguments, and not its command")
					} else {
						b.note(Applied, "each node runs the container's command; the other settings of torchrun wait for enable: true")
					}
				},
				"minNodes": func(n value) { least, _ = n.count(1); low = n; n.note(Applied, "the least of torchrun's --nnodes") },
				"maxRestarts": func(n value) {
					if count, ok := n.count(0); ok {
						f.shape.restarts = strconv.Itoa(count)
						n.note(Applied, "torchrun's --max-restarts")
					}
				},
				"procPerNode": func(p value) {
					if text, ok := p.word(); ok && p.procs(text, "gpu", "auto", "cpu") {
						f.shape.procs = text
						p.note(Applied, "torchrun's --nproc-per-node")
					}
				},
				"rdzvBackend": func(b value) {
					text, ok := b.choice("c10d", "etcd", "etcd-v2")
					if ok && text != "c10d" && torchrun {
						b.refuse("let them meet at the first node: --set "+b.path+"=c10d", "the file does not say where etcd is")
						return
					}
					b.note(Applied, "torchrun's --rdzv-backend")
				},
				"extraOptions": func(o value) { extra = o.texts(); o.note(Applied, "further options of torchrun") },
			})
		},
		"runMode": m.runMode,
		"runPolicy": runPolicy(&s, "cleanUpPolicy", fields{
			"cleanUpPolicy":  clean("All", "Unfinished", "None"),
			"cleanPodPolicy": clean("All", "Unfinished", "None"),
		}),
		"scheduler":       scheduler,
		"tensorboardSpec": cluster("--sidecar 'tensorboard --logdir DIR' runs TensorBoard beside the job"),
		"service":         cluster(whyNetwork),
	})
	if r.wrong != nil {
		return
	}
	if len(groups) == 0 {
		v.fail("a PyTorchTrainingJob has replicaSpecs")
		return
	}
	for _, g := range groups {
		g.role = strings.ToLower(g.role)
		if torchrun {
			if len(g.template.args) == 0 {
				g.template.container.refuse("give it args: the script, or -m and a module",
					"torchrun has nothing to run: the container has no args")
				return
			}
			if g.template.command.node != nil {
				f.retell(g.template.command, Mapped, "not run: torchrunConfig is enabled")
			}
			g.template.argv = append([]string{"torchrun"}, extra...)
		}
		if m.debug {
			m.run(g.role, &g.template)
		}
		role := g.role
		r.pods(*g, v, func(i int) string { return fmt.Sprintf("%s-%s-%d", f.Name, role, i) })
	}
	n := len(f.Pods)
	if least > n {
		low.fail("the least number of nodes, %d, is greater than that of all replicas, %d", least, n)
		return
	}
	f.shape.nnodes = strconv.Itoa(n)
	if torchrun {
		f.shape.backend = "c10d"
		if least > 0 && least < n {
			f.shape.nnodes, f.shape.elastic, f.shape.least = fmt.Sprintf("%d:%d", least, n), true, least
			low.setting("restart-scope", "node")
		}
	}
	s.settle("Never", t9kRetried, "ExitCode")
	fail := "rank0"
	if s.policy.node != nil && s.policy.node.Value != "Never" {
		fail = "any" // else a failure of another replica than the first would start nothing anew
	}
	v.quorum("rank0", fail)
	f.beside = func(f *File, i int, at Places) []job.Var {
		if torchrun {
			return f.pet(i, at, false)
		}
		return append(f.podLevel(i, at, len(f.Pods)), own("PYTHONUNBUFFERED", "1"))
	}
}

func colossalAIJob(v value) {
	r, f := v.r, v.r.file
	var s rules
	var m mode
	g := group{role: "worker", n: 1}
	launcher := template{container: v}
	procs := "1"
	var command, options []string
	var worker, further value
	v.object(fields{
		"ssh": cluster("ssh takes the keys of the user who starts muster, and the machines' own sshd"),
		"launcher": func(l value) {
			launcher.container = l
			l.object(fields{
				"image": cluster(whyImage), "workingDir": cluster(whyDirectory), "resources": cluster("the launcher needs none"),
				"env": func(e value) { e.list(func(item value) { item.variable(&launcher) }) },
			})
		},
		"worker": func(w value) {
			worker = w
			w.object(fields{
				"replicas": g.count,
				"procPerWorker": func(p value) {
					if text, ok := p.word(); ok && p.procs(text) {
						procs = text
						p.note(Applied, "colossalai run's --nproc_per_node")
					}
				},
				"command": func(c value) {
					command = launcher.words(c)
					c.note(Applied, "the script and its arguments, behind colossalai run")
				},
				"torchArgs": func(a value) { options, further = a.texts(), a; a.note(Applied, "further options of colossalai run") },
				"template":  func(t value) { g.template = t.template(known{noCommand: true}) },
			})
		},
		"runMode": m.runMode,
		"runPolicy": func(p value) {
			p.object(fields{
				"cleanUpWorkers": func(b value) {
					if on, ok := b.boolean(); ok {
						word := "none"
						if on {
							word = "all"
						}
						b.note(Mapped, "--clean-policy "+word)
						b.setting("clean-policy", word)
					}
				},
				"activeDeadlineSeconds": deadline, "backoffLimit": s.backoffLimit,
			})
		},
		"scheduler": scheduler,
	})
	if r.wrong != nil {
		return
	}
	if len(command) == 0 {
		v.fail("a ColossalAIJob has worker.command, the script and its arguments")
		return
	}
	if s.backoff.node != nil && s.limit > 0 {
		s.backoff.refuse("leave it out", "a ColossalAIJob has no restarts")
		return
	}
	r.pods(g, worker, func(i int) string { return fmt.Sprintf("%s-worker-%d", f.Name, i) })
	const hostfile = "/etc/colossalai/hostfile"
	launcher.argv = slices.Concat([]string{"colossalai", "run", "--hostfile", hostfile, "--nproc_per_node", procs}, options, command)
	if m.debug {
		m.run("launcher", &launcher)
		if further.node != nil {
			f.retell(further, Mapped, "not run: debug mode runs its own command")
		}
	}
	first := r.pod(launcher, "launcher", f.Name+"-launcher", 0, v.source())
	f.Launcher = &first
	f.files = func(at Places) map[string]string {
		var list strings.Builder
		for i := range f.Pods {
			fmt.Fprintln(&list, at.host(i))
		}
		return map[string]string{hostfile: list.String()}
	}
	f.beside = func(*File, int, Places) []job.Var { return []job.Var{own("PYTHONUNBUFFERED", "1")} }
}
