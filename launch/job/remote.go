package job

import (
	"maps"
	"slices"
	"strings"
)

// hostNames are patterns of variables that describe a machine, a login or a session there and not the job. They stay
// where they are, unless EnvRules.Pass names them.
var hostNames = []string{
	// the machine, and who is logged in
	"HOSTNAME", "HOST", "HOSTTYPE", "HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "MAIL", "UID", "EUID",
	// where a shell is, and what it keeps for itself
	"PWD", "OLDPWD", "SHLVL", "_", "BASH_FUNC_*", "LS_COLORS", "PS1", "PROMPT_COMMAND", "LINES", "COLUMNS",
	// a session, its desktop and its terminal
	"SSH_*", "DISPLAY", "WAYLAND_*", "XAUTHORITY", "XDG_*", "DBUS_*", "GPG_*", "KRB5CCNAME", "SUDO_*", "TERM_*", "TMUX*", "STY",
	"WINDOWID", "VSCODE_*",
	"INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "LISTEN_*", "WATCHDOG_*", "MEMORY_PRESSURE_*", "SYSTEMD_*",
	// temporary files
	"TMPDIR", "TMP", "TEMP", "TEMPDIR",
	// the part of a batch job or a pod that the launcher is
	"SLURM_STEP*", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_TOPOLOGY_*", "SLURM_LAUNCH_*",
	"SLURM_SRUN_*",
	"SLURM_CPU_BIND*", "SLURM_MEM_BIND*", "SLURM_GPUS_ON_NODE", "SLURM_CPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURMD_*", "PBS_NODENUM",
	"PBS_TASKNUM", "PBS_VNODENUM",
	"KUBERNETES_*", "POD_NAME", "POD_IP", "POD_UID", "NODE_NAME", "HOST_IP",
	// muster itself
	"MUSTER_*",
}

// joinedPaths are lists of directories of which other machines get the launcher's first and then their own: the same
// image or a shared home on all of them is the usual case, and a login by ssh finds neither the activated environment
// nor CUDA.
var joinedPaths = []string{"PATH", "LD_LIBRARY_PATH"}

// leaves reports whether a variable of the launcher is sent to other machines.
func (r EnvRules) leaves(name string) bool {
	switch {
	case Matches(r.Deny, name), Stale(name, false):
		return false
	case Matches(r.Pass, name):
		return true
	}
	return r.Mode != EnvInherit && r.Mode != EnvClean && !Matches(hostNames, name) && !Matches(deviceNames, name)
}

// Passed returns what of the launcher's environment leaves its machine: entries "NAME=VALUE", sorted by name.
func Passed(rules EnvRules, launcher []string) []string {
	vars := variablesOf(launcher)
	maps.DeleteFunc(vars, func(name, _ string) bool { return !rules.leaves(name) })
	return environOf(vars)
}

// RemoteEnviron returns what a job has as Environ on another machine than the launcher's, where machine is the
// environment of the process that serves the job there, and launcher what the launcher began with, or Passed of that.
func RemoteEnviron(rules EnvRules, machine, launcher []string) []string {
	vars := variablesOf(machine)
	for _, name := range []string{"PWD", "OLDPWD", "SHLVL", "_"} { // of a shell that the workers have nothing to do with
		delete(vars, name)
	}
	if rules.Mode == EnvClean {
		maps.DeleteFunc(vars, func(name, _ string) bool { return !slices.Contains(cleanNames, name) && !Matches(deviceNames, name) })
	}
	for name, value := range variablesOf(launcher) {
		if !rules.leaves(name) {
			continue
		}
		if own := vars[name]; slices.Contains(joinedPaths, name) {
			value = joinPaths(value, own)
		}
		vars[name] = value
	}
	return environOf(vars)
}

// joinPaths puts those directories of more behind list that are not in it.
func joinPaths(list, more string) string {
	if list == "" || more == "" {
		return list + more
	}
	known := strings.Split(list, ":")
	for dir := range strings.SplitSeq(more, ":") {
		if !slices.Contains(known, dir) {
			known = append(known, dir)
		}
	}
	return strings.Join(known, ":")
}

// variablesOf are those of an environment, by name; of several with one name the last counts.
func variablesOf(environ []string) map[string]string {
	vars := make(map[string]string, len(environ))
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			vars[name] = value
		}
	}
	return vars
}

// WithVariable is environ with a variable set, and without any other entry of it: of two the first counts.
func WithVariable(environ []string, name, value string) []string {
	others := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	return append(others, name+"="+value)
}

func environOf(vars map[string]string) []string {
	list := make([]string, 0, len(vars))
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		list = append(list, name+"="+vars[name])
	}
	return list
}
