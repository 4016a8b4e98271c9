package dialect

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"muster/internal/hosts"
	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// groupHosts is the help text's heading over where muster itself starts the nodes.
const groupHosts = "Hosts that muster starts the nodes on"

// Defaults of how hosts are reached.
const (
	// A machine that somebody has typed is up or is not; a pod may still have to be scheduled and to pull its image.
	defaultStartTimeout = time.Minute
	podStartTimeout     = 5 * time.Minute

	defaultParallel = 64
)

// maxParallel bounds how many hosts are reached at once: each costs a process or two and some files.
const maxParallel = 1024

// hostSettings name the hosts of a job and say how they are reached. Those that name hosts are read by readHosts.
func hostSettings(w *ownWords) []option {
	ssh := func(r *Request) *job.SSHRules { return &r.Job.Hosts.SSH }
	later := func(*Request, string) error { return nil }
	return []option{
		{
			name: "hosts", word: &w.Hosts, frequent: true, inside: insideRefused, kind: kindList, arg: "HOST[:SLOTS],...",
			group: groupHosts, anywhere: true,
			use: use{strongest("--hostfile", &w.Hosts, &w.Hostfile)},
			help: "Start the whole job from here: a node on each of these hosts, in this order, by ssh. As in node1:8,user@node2:8, " +
				"node[01-16]:8 or [2001:db8::1]:8; slots are the workers on that host.",
			set: later,
		},
		{
			name: "hostfile", word: &w.Hostfile, frequent: true, inside: insideRefused, arg: "FILE", group: groupHosts, anywhere: true,
			use:  use{strongest("--hosts", &w.Hostfile, &w.Hosts)},
			help: "The same with a host on each line of FILE: HOST, HOST:SLOTS or HOST slots=N, and port=N or user=NAME behind it.",
			set:  later,
		},
		{
			name: "include", word: &w.Include, arg: "HOST[:SLOT,...][@...]", group: groupHosts, anywhere: true, use: use{onHosts},
			help: "Use only these of the hosts, and of a host only these accelerators, as in node1@node2:0,2.",
			set:  later,
		},
		{
			name: "exclude", word: &w.Exclude, arg: "HOST[:SLOT,...][@...]", group: groupHosts, anywhere: true, use: use{onHosts},
			help: "Use the hosts without these, or without these accelerators of theirs.",
			set:  later,
		},
		{
			name: "remote-dir", word: &w.RemoteDir, arg: "DIR", group: groupHosts, anywhere: true, use: use{onHosts},
			help: "Working directory on all hosts. Default: this one.",
			set: func(r *Request, text string) error {
				if !path.IsAbs(text) {
					return errors.New("give a path from the root: it is to be the same on all hosts")
				}
				r.Job.Hosts.Dir = text
				return nil
			},
		},
		{
			name: "collect-logs", word: &w.CollectLogs, arg: "DIR", group: groupHosts, anywhere: true, use: use{byAgents, onHosts},
			help: "Bring the workers' log files of all hosts to DIR on this machine.",
			set:  func(r *Request, text string) error { r.Job.Hosts.CollectLogs = text; return nil },
		},
		{
			name: "collect-logs-limit", word: &w.CollectLogsLimit, arg: "SIZE", def: "1GiB", group: groupHosts, anywhere: true,
			use:  use{byAgents, onHosts, collecting},
			help: "How many bytes --collect-logs takes of all hosts together; what is more stays there.",
			set: func(r *Request, text string) (err error) {
				if r.Job.Hosts.CollectLimit, err = parseSize(text); err == nil && r.Job.Hosts.CollectLimit <= 0 {
					err = errors.New("give a size above 0, such as 10GiB")
				}
				return err
			},
		},
		{
			name: "start-timeout", word: &w.StartTimeout, kind: kindTime, arg: "TIME", def: "60s", group: groupHosts, anywhere: true,
			use: use{onHosts},
			help: "How long hosts that are not up yet are waited for; then the job ends with status 75. 5m in Kubernetes, where pods " +
				"may still be made.",
			set: func(r *Request, text string) error { return setPositive(&r.Job.Hosts.StartTimeout, text, time.Second) },
		},
		{
			name: "preflight", word: &w.Preflight, arg: "on|off", def: "on", group: groupHosts, anywhere: true, use: use{byAgents, onHosts},
			help: "Compare what the hosts have, such as their Python, before workers start.",
			set:  func(_ *Request, text string) error { return oneOf(text, "on", "off") }, // finishHosts reads it
		},
		{
			name: "ssh-user", word: &w.SSHUser, arg: "NAME", group: groupHosts, anywhere: true, use: use{onHosts, bySSH},
			help: "User on hosts that are named without one. Default: as ssh's configuration says.",
			set: func(r *Request, text string) error {
				if !hosts.IsUser(text) {
					return errors.New("give the name of a user")
				}
				ssh(r).User = text
				return nil
			},
		},
		{
			name: "ssh-port", word: &w.SSHPort, kind: kindInt, arg: "PORT", group: groupHosts, anywhere: true, use: use{onHosts, bySSH},
			help: "Port of hosts that are named without one. Default: as ssh's configuration says.",
			set: func(r *Request, text string) error {
				n, err := pyInt(text)
				if err != nil || n < 1 || n > 65535 {
					return errors.New("give a number from 1 to 65535")
				}
				ssh(r).Port = n
				return nil
			},
		},
		{
			name: "ssh-identity", word: &w.SSHIdentity, arg: "FILE", group: groupHosts, anywhere: true, use: use{onHosts, bySSH},
			help: "Private key to log in with, beside those of the agent and of ssh's configuration.",
			set:  func(r *Request, text string) error { ssh(r).Identity = text; return nil },
		},
		{
			name: "ssh-host-key-policy", word: &w.SSHHostKeyPolicy, arg: "POLICY", group: groupHosts, anywhere: true,
			use: use{onHosts, bySSH},
			help: "What becomes of hosts whose key is not known. Default: what StrictHostKeyChecking of ssh's configuration says, else " +
				"accept-new. accept-new (it is taken, and a changed one is refused), strict (they are refused), off (keys are not " +
				"looked at).",
			set: func(r *Request, text string) error {
				ssh(r).HostKeys = text
				return oneOf(text, "accept-new", "strict", "off")
			},
		},
		{
			name: "ssh-option", word: &w.SSHOption, separator: several, arg: "NAME=VALUE", group: groupHosts, anywhere: true,
			use:  use{onHosts, bySSH},
			help: "A further option, as ssh -o takes it; may be given again.",
			set: func(r *Request, text string) error {
				ssh(r).Options = nil
				for line := range strings.SplitSeq(text, several) {
					option := strings.TrimSpace(line)
					if option == "" {
						continue
					}
					if !sshOption().MatchString(option) {
						return fmt.Errorf("%q is no option of ssh: write NAME=VALUE, such as ProxyJump=gateway", option)
					}
					ssh(r).Options = append(ssh(r).Options, option)
				}
				return nil
			},
		},
		{
			name: "ssh-program", word: &w.SSHProgram, arg: "PROGRAM", group: groupHosts, anywhere: true, use: use{onHosts, bySSH},
			help: "Program that takes ssh's arguments, to be used in its place, with arguments of its own behind blanks, such as \"ssh " +
				"-q\". Default: muster speaks the protocol itself.",
			set: func(r *Request, text string) error {
				if strings.ContainsAny(text, `'"\`) {
					return errors.New("quotes and backslashes mean nothing here: put such a command into a script")
				}
				if ssh(r).Program = strings.Fields(text); len(ssh(r).Program) == 0 {
					return errors.New("it is empty")
				}
				return nil
			},
		},
		{
			name: "ssh-parallel", word: &w.SSHParallel, kind: kindInt, arg: "N", def: "64", group: groupHosts, anywhere: true,
			use:  use{byAgents, onHosts, bySSH},
			help: "How many hosts are reached at once.",
			set: func(r *Request, text string) error {
				n, err := pyInt(text)
				if err != nil || n < 1 || n > maxParallel {
					return fmt.Errorf("give a number from 1 to %d", maxParallel)
				}
				ssh(r).Parallel = n
				return nil
			},
		},
	}
}

// sshOption is an option as ssh -o takes it.
var sshOption = lazyregexp.New(`^[A-Za-z][A-Za-z0-9]*=\S.*$`)

// podsFrom says by what it is known that the hosts of the job are pods, which may still have to be made; empty where
// they are not.
func (r *Request) podsFrom() string {
	switch r.Job.Platform {
	case "mpijob", "aitj", "dlrover", "kubeflow", "volcano":
		return r.Job.Platform
	}
	const service = "KUBERNETES_SERVICE_HOST"
	if slices.ContainsFunc(r.Job.Environ, func(v string) bool { return strings.HasPrefix(v, service+"=") && len(v) > len(service)+1 }) {
		return service
	}
	return ""
}

// finishHosts fills in the defaults of a job that has hosts.
func (r *Request) finishHosts(words *ownWords) {
	h := &r.Job.Hosts
	if h.StartTimeout == 0 {
		h.StartTimeout = defaultStartTimeout
		if from := r.podsFrom(); from != "" {
			h.StartTimeout = podStartTimeout
			r.tell(&words.StartTimeout, "5m", job.Source{Kind: job.FromPlatform, Name: from})
		}
	}
	if h.SSH.Parallel == 0 {
		h.SSH.Parallel = defaultParallel
	}
	h.Preflight = words.Preflight.text != "off"
}
