package dialect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"muster/launch/job"
)

// use says in which jobs something reads a setting: in those that meet all of its conditions, the most telling one
// first. Every setting declares it in its own row, and allSettings takes no row without one, so that a new flag cannot
// be forgotten; docs/adr/0038-settings-are-read.md says why it is done so.
type use []condition

// condition is something without which a setting has no effect on a job.
type condition struct {
	// lack completes "it has no effect …", such as "without hosts"; remedy says what to do.
	lack, remedy string
	// met looks at the finished job. words are muster's own settings that were given.
	met func(r *Request, words *ownWords) bool
}

// always is the use of settings that every job reads.
var always = use{}

// when makes a condition of a look at the job alone.
func when(lack, remedy string, met func(job *job.Job) bool) condition {
	return condition{lack, remedy, func(r *Request, _ *ownWords) bool { return met(&r.Job) }}
}

// Conditions of settings.
var (
	// byAgents is met where agents look after groups of workers. The driver of an elastic horovodrun starts them one by
	// one.
	byAgents = condition{
		"on an elastic horovodrun, whose driver in the launcher starts workers one by one",
		"leave it out, or start a job whose hosts do not change",
		func(r *Request, _ *ownWords) bool { return !r.driven() },
	}
	onHosts = condition{
		"without hosts", "name them by --hosts or --hostfile, or as the launcher names hosts",
		func(r *Request, _ *ownWords) bool { return len(r.Job.Hosts.Nodes) > 0 || r.Horovod != nil },
	}
	bySSH = condition{
		"where all hosts are this machine", "leave it out: nothing is reached by ssh",
		func(r *Request, _ *ownWords) bool {
			return r.driven() || slices.ContainsFunc(r.Job.Hosts.Nodes, func(n job.Node) bool {
				return n.User != "" || n.Port != 0 || !isLoopback(n.Name)
			})
		},
	}
	withoutHosts = when("on hosts, whose workers read nothing",
		"start the workers that are to read it with muster run on their own machine",
		func(job *job.Job) bool { return len(job.Hosts.Nodes) == 0 })
	severalNodes = when("on one node", "leave it out: one node meets no others", func(job *job.Job) bool { return !job.Alone() })
	// guarded is met where a token opens something: what the nodes say to each other, or the page.
	guarded = condition{
		severalNodes.lack, "leave it out: one node meets no others; or give --http, too, whose page asks for it",
		func(r *Request, words *ownWords) bool {
			return severalNodes.met(r, words) || r.Job.See.HTTP != ""
		},
	}
	// elasticNodes is met where a round may begin before all nodes that it could have are there.
	elasticNodes = when("where the number of nodes is fixed", "give --nnodes MIN:MAX or --spares N",
		(*job.Job).CanSpareNodes)
	// looseRanks is met where nodes get their ranks when they meet.
	looseRanks = when("where each node's rank is fixed beforehand", "let the nodes meet by c10d, muster or etcd", func(job *job.Job) bool {
		return job.Meeting.Backend != backendStatic || len(job.Hosts.Nodes) > 0 && !fixedWorkers(job)
	})
	spareNodes = when("where each node's rank is fixed beforehand", "let the nodes meet by c10d, muster or etcd",
		func(job *job.Job) bool { return job.Meeting.Backend != backendStatic })
	// comeBack is met where a node that had to leave may be started again.
	comeBack = when("on hosts, of which none that had to leave is asked again", "leave it out",
		func(job *job.Job) bool { return len(job.Hosts.Nodes) == 0 })
	byEtcd = when("where the nodes do not meet by etcd", "leave it out, or let them meet by etcd",
		func(job *job.Job) bool { return job.Meeting.Backend == backendEtcd })
	// notSimulated is for what all simulated nodes would do with the same file.
	notSimulated = condition{
		"on simulated nodes", "leave it out", func(r *Request, _ *ownWords) bool { return r.SimulateNodes == 0 },
	}
	noStatusOfEach = condition{notSimulated.lack, "leave it out: muster status -o json says the same of all nodes", notSimulated.met}

	faked = condition{
		"without a fake accelerator", "give --accelerator fake:FILE",
		func(r *Request, _ *ownWords) bool { return r.Job.Fake != "" || r.MadeUp != "" },
	}
	warmable = when("in a job that is not restarted", "give --max-restarts, or --warm auto for the first start, too",
		func(job *job.Job) bool {
			return !job.Warm.Restarts || job.Restart.MaxRestarts > 0 || !job.Alone()
		})
	warmed = when("without --warm auto or --warm MODULES", "give --warm auto, or --warm with the modules", func(job *job.Job) bool {
		return !job.Warm.Restarts && (job.Warm.Auto || len(job.Warm.Modules) > 0) // for restarts alone nobody waits
	})
	bound = when("without --numa-binding", "say how workers are to be bound, as in --numa-binding node",
		func(job *job.Job) bool { return job.Bind.Mode != "" })

	// remade is met by jobs whose workers can be started anew by agents.
	remade = condition{
		"on a Horovod job, whose world is made once", "an elastic job (--min-np, --host-discovery-script) survives the loss of workers",
		func(r *Request, _ *ownWords) bool { return r.Horovod == nil || r.Horovod.Elastic },
	}
	restarts = condition{
		"while --max-restarts is 0: nothing would be restarted", "give --max-restarts N",
		func(r *Request, _ *ownWords) bool { return r.Job.Restart.MaxRestarts > 0 || r.driven() },
	}
	// loops is met where a crash loop can be longer than the restarts that are left.
	loops = condition{
		"above --max-restarts: that limit would always be met first", "give --max-restarts at least the same number",
		func(r *Request, _ *ownWords) bool {
			rules := &r.Job.Restart
			return rules.CrashLoop <= rules.MaxRestarts || rules.Window > 0 || !r.Job.Alone()
		},
	}
	rounds = condition{
		"while --max-restarts is 0 on one node: nothing would be restarted", "give --max-restarts N",
		func(r *Request, _ *ownWords) bool {
			return r.driven() || r.Job.Restart.MaxRestarts > 0 || !r.Job.Alone()
		},
	}
	// counted is met where restarts of a node are counted. An elastic horovodrun counts worlds.
	counted = condition{
		"on an elastic horovodrun, which begins new worlds instead",
		"bound them with --reset-limit N behind horovodrun, or --backoff-limit N in front of it",
		func(r *Request, _ *ownWords) bool { return !r.driven() },
	}
	// bounded is met where somebody has said how often workers that are started at once and on the same hosts may fail.
	bounded = condition{
		"on an elastic horovodrun that nothing bounds: workers that fail at once would be started for ever",
		"give --backoff-limit N in front of horovodrun, or --reset-limit N behind it",
		func(r *Request, _ *ownWords) bool { return !r.driven() || r.bounded() },
	}
	windowed = condition{
		"on an elastic horovodrun without a limit or pauses", "give --backoff-limit N too",
		func(r *Request, words *ownWords) bool {
			return !r.driven() || r.Job.Restart.BackoffLimit >= 0 || paused.met(r, words)
		},
	}
	paused = condition{
		"on an elastic horovodrun whose other workers wait and hold its state, while a host that failed has its cool-down",
		"give --restart-scope world or process, or horovodrun's --blacklist-cooldown-range",
		func(r *Request, _ *ownWords) bool {
			return !r.driven() || r.Job.Restart.Scope != job.ScopeNode || r.Job.Restart.Policy == job.RestartAlways
		},
	}
	// losable is met where nodes can be lost that others outlive.
	losable = condition{severalNodes.lack, severalNodes.remedy, func(r *Request, words *ownWords) bool {
		return r.driven() || severalNodes.met(r, words)
	}}
	// ranksLast is met by a --restart-limit for each rank where nodes keep theirs from round to round.
	ranksLast = condition{
		"on an elastic horovodrun, whose workers change their ranks while they run", "give --restart-limit N, for the whole job",
		func(r *Request, words *ownWords) bool {
			return !r.driven() || !strings.HasSuffix(words.RestartLimit.text, perRank)
		},
	}
	// ranked is met where workers keep their ranks while they run, by which checkpoints in memory are kept.
	ranked = condition{
		"on an elastic horovodrun, whose workers change their ranks while they run",
		"keep the state with Horovod's state.commit(), or start a job whose hosts do not change",
		func(r *Request, _ *ownWords) bool { return !r.driven() },
	}
	// retries is met where the exit of a worker may start it anew.
	retries = when("with a --restart-policy by which no exit of a worker is retried", "leave one of them out", func(j *job.Job) bool {
		return j.Restart.Policy != job.RestartNever && j.Restart.Policy != job.RestartOnNodeFail
	})
	byExitCode = when("unless --restart-policy is exit-code", "give --restart-policy exit-code", func(j *job.Job) bool {
		return j.Restart.Policy == job.RestartExitCode || j.Restart.Policy == job.RestartOnNodeFailOrExitCode
	})
	// acting is met by a restart policy that can do something else than the default would.
	acting = condition{
		"while --max-restarts is 0: nothing would be restarted", "give --max-restarts N",
		func(r *Request, words *ownWords) bool {
			switch r.Job.Restart.Policy {
			case job.RestartNever, job.RestartOnNodeFail:
				return true // which need no restarts
			default:
				return restarts.met(r, words)
			}
		},
	}
	othersFail = condition{
		"on one node: it has no others that could fail", "give exit-code, on-failure or never",
		func(r *Request, _ *ownWords) bool {
			p := r.Job.Restart.Policy
			return p != job.RestartOnNodeFail && p != job.RestartOnNodeFailOrExitCode || !r.Job.Alone() || r.driven()
		},
	}
	nodesReturn = when("with --restart-policy never", "leave one of them out",
		func(j *job.Job) bool { return j.Restart.Policy != job.RestartNever })
	early = when("where the job ends with its last worker", "give --success-policy any or rank0", func(j *job.Job) bool {
		return j.Restart.Success == job.QuorumAny || j.Restart.Success == job.QuorumRank0
	})

	checked = when("without --network-check", "give --network-check too", func(job *job.Job) bool { return job.Check.Network })
	// trained is met where stragglers are found by a network check, or by the steps of a training that can do without them.
	trained = condition{
		"without --network-check, on one node, a fixed number of nodes or an elastic horovodrun",
		"give --network-check too where there are several nodes, or --nnodes MIN:MAX or --spares N",
		func(r *Request, words *ownWords) bool {
			several := !r.driven() && severalNodes.met(r, words)
			return r.Job.Check.Network || several && (r.Job.CanSpareNodes() || r.Job.Hang.Examines())
		},
	}
	anyCheck = when("without --network-check", "give --network-check too, or --switchbox-check",
		func(job *job.Job) bool { return job.Check.On() })
	// leaves is met where a node may have to leave.
	leaves = when("where no node has to leave", "give --network-check too; or where the job can do without a node, by --nnodes MIN:MAX or "+
		"--spares N, --on-hang exclude, --exclude-straggler or --crash-loop",
		func(job *job.Job) bool { return job.Check.On() || job.Excludes() })
	boxed = when("without --switchbox-check", "give --switchbox-check too",
		func(job *job.Job) bool { return len(job.Check.Switchbox.Pairs) > 0 })
	measured = when("without --comm-perf-test", "give --comm-perf-test too", func(job *job.Job) bool { return job.Check.CommPerf })

	// servesStore is met where machines besides this one come to a store, or to the driver of an elastic horovodrun,
	// and where other users of this one are let in.
	servesStore = condition{
		"on one node", "leave it out: one node meets no others; or name loopback, 127.0.0.0/8, for processes of other users",
		func(r *Request, _ *ownWords) bool {
			return !r.Job.Alone() || r.driven() || r.Job.Meeting.AllowsLoopback()
		},
	}
	collecting = when("without --collect-logs", "give --collect-logs DIR", func(job *job.Job) bool { return job.Hosts.CollectLogs != "" })
	dry        = condition{"without --dry-run", "give --dry-run too", func(r *Request, _ *ownWords) bool { return r.DryRun }}

	tokened = condition{"without a job token", "give --token-file", func(r *Request, _ *ownWords) bool {
		return r.Job.Meeting.TokenFile != "" || len(r.Job.Hosts.Nodes) > 0 || r.driven()
	}}

	keeps = when("where --ckpt is not on", "give --ckpt on, or leave it out", func(job *job.Job) bool { return job.Checkpoint.On })

	// shows is met where the workers' output goes to the console, and divided where some goes to files of the run as
	// well.
	shown = when("with a file for each rank, in which all output goes", "leave one of them out",
		func(job *job.Job) bool { return job.Logs.RankDir == "" })
	divided = when("where the launcher's own flag names a file for each rank", "leave one of them out",
		func(job *job.Job) bool { return job.Logs.RankDir == "" && job.Logs.RankFiles == "" })
	prefixed = when("where no line has a prefix", "give --tee 3",
		func(job *job.Job) bool { return job.Logs.PrefixAll || job.Logs.Tee.Any() })

	// travels is met where variables go to other machines, or where not all of them reach the workers.
	travels = when("without hosts: workers here inherit everything", "name hosts, or give --env-mode clean",
		func(j *job.Job) bool { return len(j.Hosts.Nodes) > 0 || j.Env.Mode == job.EnvClean })
	setsEnv = when("without --env or --env-file: there is nothing to expand", "give one of them", func(j *job.Job) bool {
		return slices.ContainsFunc(j.Env.Set, func(v job.Var) bool {
			return v.Source.Kind != job.FromDefault && v.Source.Kind != job.FromMuster
		})
	})
)

// driven reports whether a driver in the launcher starts the workers one by one, as of an elastic horovodrun.
func (r *Request) driven() bool { return r.Horovod != nil && r.Horovod.Elastic }

// bounded reports whether such a job is told how many worlds may follow the first one.
func (r *Request) bounded() bool { return r.Horovod.ResetLimit >= 0 || r.Job.Restart.BackoffLimit >= 0 }

// fixedWorkers reports whether workers are told places in the world that follow from the order of the hosts, as
// programs for MPI and Horovod are.
func fixedWorkers(j *job.Job) bool {
	return slices.ContainsFunc(j.Hosts.Nodes, func(n job.Node) bool { return n.WorkerEnv != nil })
}

// rankOf is met by a node rank that is true of this node: one that the meeting goes by, or 0 of a node by itself.
var rankOf = condition{
	"where ranks are given when the nodes meet", "leave it out", func(r *Request, words *ownWords) bool {
		if n, err := pyInt(words.NodeRank.text); r.Job.Alone() {
			return err == nil && n == 0
		}
		return r.Job.Meeting.Backend == backendStatic || r.Job.Meeting.Prefers > 0
	},
}

// masterHere is met where the address and port of node 0 say where the store listens.
var masterHere = condition{
	"beside another meeting place", "leave it out", func(r *Request, words *ownWords) bool {
		j := &r.Job
		return !words.Rdzv.given && r.SimulateNodes == 0 &&
			(j.Alone() || j.Meeting.Backend == backendStatic || len(j.Hosts.Nodes) > 0 || len(j.Meeting.Endpoints) == 0)
	},
}

// confRead is met where the nodes meet, or the settings say that this one meets others.
var confRead = when("on one node", "leave it out: one node meets no others",
	func(job *job.Job) bool { return !job.Alone() || job.Meeting.IsHost != nil })

// strongest is met by the setting of several that was given in the strongest place; the others say something else. names
// are those of the others, for people.
func strongest(names string, own *value, others ...*value) condition {
	return condition{
		"beside a stronger " + names, "leave one of them out", func(_ *Request, words *ownWords) bool {
			return !slices.ContainsFunc(others, func(other *value) bool {
				return other.option.of(words).source.Kind > own.option.of(words).source.Kind
			})
		},
	}
}

// unmet is the first condition that the job does not meet, nil for none.
func (u use) unmet(r *Request, words *ownWords) *condition {
	for i := range u {
		if !u[i].met(r, words) {
			return &u[i]
		}
	}
	return nil
}

// asksNothing reports whether the word asks for what happens anyway: the default, or a switch that is off.
func (r *Request) asksNothing(s *option, text string) bool {
	def := s.def
	if r.driven() {
		def = cmp.Or(s.driven, def)
	}
	if r.Job.Dialect != nativeRun {
		def = cmp.Or(s.elsewhere, def)
	}
	off, err := parseSwitch(text)
	return !s.insists && def != "" && text == def || !s.kind.takesWord() && err == nil && !off
}

// unread refuses the typed settings that nothing in the job reads, with what they would need, and warns in one line of
// those that variables and files give, which may be meant for many jobs. words are muster's own settings that were
// given.
func (r *Request) unread(words *ownWords, wrong *problems) {
	var idle []string
	lacks := map[string][]string{} // the settings of variables and files, by what the job lacks
	for _, s := range settings() {
		lack := s.use.unmet(r, words)
		if lack == nil {
			continue
		}
		for word := s.of(words); word != nil && word.given; word = word.weaker {
			harmless := Setting{Flag: s.name, Value: word.text, secret: word.secret}
			harmless.hide()
			switch said := (value{option: s, text: harmless.Value, source: word.source}).typed(); {
			case r.asksNothing(s, word.text) || word.ofOperators() || word.theirs && lack.lack == severalNodes.lack && !word.ours():
			case word.theirs && word.source.Kind == job.FromFlag:
				r.Job.Warnings = append(r.Job.Warnings, fmt.Sprintf("--%s has no effect %s", s.name, lack.lack))
			case word.source.Kind == job.FromFlag:
				wrong.add(fmt.Errorf("cannot use %s: it has no effect %s; %s", said, lack.lack, lack.remedy))
			default:
				if len(lacks[lack.lack]) == 0 {
					idle = append(idle, lack.lack)
				}
				lacks[lack.lack] = append(lacks[lack.lack], word.place())
			}
		}
	}
	if len(idle) == 0 {
		return
	}
	for i, lack := range idle {
		idle[i] = strings.Join(lacks[lack], ", ") + " (" + lack + ")"
	}
	r.Job.Warnings = append(r.Job.Warnings, "no effect on this job: "+strings.Join(idle, "; "))
}

// ofOperators reports whether the word is a platform's, or stands in one of the variables of torchrun that operators
// set for all jobs alike.
func (v value) ofOperators() bool {
	name, pet := strings.CutPrefix(v.source.Name, petPrefix)
	return v.source.Kind == job.FromPlatform || v.source.Kind == job.FromVariable && pet &&
		slices.ContainsFunc(torchrunRows(), func(o option) bool {
			return o.variables && variable("", o.name) == name
		})
}
