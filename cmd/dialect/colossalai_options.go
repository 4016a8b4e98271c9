package dialect

// colossalWords are the values of colossalai run's options.
type colossalWords struct {
	host, hostfile, include, exclude, numNodes, nprocPerNode, masterPort, masterAddr, extraLaunchArgs, sshPort,
	module value
}

// colossalOptions are those of colossalai run 0.5.0 (colossalai/cli/launcher/__init__.py).
func colossalOptions(w *colossalWords) []option {
	return []option{
		{
			name: "host", word: &w.host, short: "H", arg: "HOST,...", group: groupNamed,
			help: "Hosts to start workers on, the first one's address being where they meet.",
		},
		{name: "hostfile", word: &w.hostfile, arg: "FILE", group: groupNamed, help: "File with a host's name on each line."},
		{name: "include", word: &w.include, arg: "HOST,...", group: groupNamed, help: "With --hostfile: take these hosts, in this order."},
		{name: "exclude", word: &w.exclude, arg: "HOST,...", group: groupNamed, help: "With --hostfile: take all but these hosts."},
		{
			name: "num-nodes", word: &w.numNodes, kind: kindInt, def: "-1", hideDefault: true, arg: "N", group: groupNamed,
			help: "With --hostfile: take the first N hosts. Default: all.",
		},
		{name: "nproc-per-node", word: &w.nprocPerNode, arg: "N", group: groupNamed, help: "Workers on each host. Must be given."},
		{
			name: "master-port", word: &w.masterPort, kind: kindInt, def: "29500", arg: "PORT", group: groupRdzv,
			help: "Port of the workers' store on the first host.",
		},
		{
			name: "master-addr", word: &w.masterAddr, def: "127.0.0.1", arg: "HOST", group: groupRdzv,
			help: "Address of the first host, by which the others reach it. Default: its name; 127.0.0.1 on one node.",
		},
		{
			name: "extra-launch-args", word: &w.extraLaunchArgs, arg: "NAME=VALUE,NAME,...", group: groupRdzv,
			help: "Flags of torchrun, without their dashes and with commas between, such as max_restarts=3,rdzv_backend=c10d.",
		},
		{
			name: "ssh-port", word: &w.sshPort, kind: kindInt, noDefault: true, arg: "PORT", group: groupReach,
			help: "Port of sshd on the hosts. Default: what ssh's configuration says, else 22.",
		},
		{
			name: "module", word: &w.module, short: "m", noDefault: true, arg: "MODULE", group: groupCommand,
			help: "Run a Python module as python -m does; what follows are its arguments.",
		},
		{name: "help", kind: kindHelp, noDefault: true, group: groupOther, help: "Print this text and exit."},
	}
}
