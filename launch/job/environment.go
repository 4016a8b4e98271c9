package job

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"muster/internal/errhint"
)

// staleNames and stalePrefixes are what an outer launcher or batch system leaves in our environment about itself. A
// worker that saw it would take the outer job's rank for its own (PMI and OMPI variables are read by libraries that
// look for MPI without being asked).
var (
	staleNames = []string{
		"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
		"ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
		"TORCHELASTIC_MAX_RESTARTS",
		"TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
		"SLURM_PROCID", "SLURM_LOCALID",
	}
	// MUSTER_ variables are our own settings: a muster inside the job would write the same status file.
	stalePrefixes = []string{"OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MUSTER_"}
)

// platformPrefixes begin the names of what launchers of processes tell a process besides. They are kept from workers
// only where a platform started muster: elsewhere they are somebody's settings, such as OMPI_MCA_btl.
var platformPrefixes = []string{"OMPI_", "PMI", "MV2_COMM_WORLD_", "MPI_LOCAL", "JSM_NAMESPACE_", "PALS_", "HYDI_"}

// Stale reports whether an outer launcher or batch system left a variable of that name about itself. With ofPlatform,
// what launchers of processes tell a process besides counts, too.
func Stale(name string, ofPlatform bool) bool {
	begins := func(prefixes []string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	}
	return slices.Contains(staleNames, name) || begins(stalePrefixes) || ofPlatform && begins(platformPrefixes)
}

// AgentMark is the variable by which the guardian knows what descends from an agent. Nothing takes it away.
const AgentMark = "MUSTER_AGENT"

// RunDirIn is the run directory of the job in one of whose workers an environment is, empty outside of any.
func RunDirIn(environ []string) string {
	for _, kv := range environ {
		if dir, ok := strings.CutPrefix(kv, "MUSTER_RUN_DIR="); ok {
			return dir
		}
	}
	return ""
}

// torchNames are the variables that muster itself tells every worker, whatever it inherited and EnvRules.Set say.
var torchNames = []string{
	"LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
	"MASTER_ADDR",
	"MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
	"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "MUSTER_RUN_DIR", AgentMark, "MUSTER_ROUND",
}

// TellsWorkers reports whether muster itself sets the variable for every worker, so that EnvRules.Set cannot.
func TellsWorkers(name string) bool { return slices.Contains(torchNames, name) }

// cleanNames are what is left of a machine's environment under EnvClean, beside which accelerators may be used.
var cleanNames = []string{"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER"}

// deviceNames are patterns of the variables that choose among a machine's accelerators. They mean nothing on another
// one.
var deviceNames = []string{"*_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"}

// Matches reports whether a variable's name fits one of the patterns, as path.Match has them. Bad patterns fit nothing;
// CheckPatterns refuses them.
func Matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		fits, err := path.Match(p, name)
		return fits && err == nil
	})
}

// CheckPatterns refuses patterns of names that can fit nothing.
func CheckPatterns(patterns []string) error {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil || p == "" || strings.ContainsAny(p, "= \t\n/") {
			return errhint.Usagef("%q is no pattern of variables' names, such as NCCL_*", p)
		}
	}
	return nil
}

// Keeps reports whether workers on the machine that has a variable inherit it.
func (r EnvRules) Keeps(name string) bool {
	return r.Mode != EnvClean || slices.Contains(cleanNames, name) || Matches(deviceNames, name) || Matches(r.Pass, name)
}

// Lookup returns how workers of this node find a variable, before muster chooses their Python and their accelerators:
// in the job's rules, else among what they inherit.
func (j *Job) Lookup() func(name string) (string, bool) {
	environ, given := variablesOf(j.Environ), map[string]Var{}
	Assign(given, slices.Concat(j.Env.Set, j.NodeEnv), environ)
	return func(name string) (string, bool) {
		if Matches(j.Env.Unset, name) {
			return "", false
		}
		if v, ok := given[name]; ok {
			return v.Value, true
		}
		value, ok := environ[name]
		if !ok || !j.Env.Keeps(name) {
			return "", false
		}
		return value, true
	}
}

// Vars are the variables that the job sets on this node for its workers, for one of them or for all, with what they refer
// to among themselves. Which of two of a name wins is not said.
func (j *Job) Vars() []Var {
	var list []Var
	for _, own := range append([][]Var{nil}, j.WorkerEnv...) {
		vars := map[string]Var{}
		Assign(vars, slices.Concat(j.Env.Set, j.NodeEnv, own), nil)
		list = slices.AppendSeq(list, maps.Values(vars))
	}
	return list
}

// Assign sets variables in their order, each seen by the values behind it; others are seen where vars has none.
func Assign(vars map[string]Var, list []Var, others map[string]string) {
	for _, v := range list {
		if v.Expand {
			v.Value, v.Expand = expandVars(v.Value, func(name string) string {
				if known, ok := vars[name]; ok {
					v.Secret = v.Secret || known.Secret
					return known.Value
				}
				return others[name]
			}), false
		}
		vars[v.Name] = v
	}
}

// reference is what is replaced in a value, compiled when it is asked for: few jobs need it.
var reference = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(?:\$|[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)
})

// expandVars replaces $NAME and ${NAME} by what a variable holds, nothing where there is none, and $$ by a dollar sign.
// What else follows a dollar sign stays as it is.
func expandVars(text string, value func(string) string) string {
	return reference().ReplaceAllStringFunc(text, func(word string) string {
		if word == "$$" {
			return "$"
		}
		return value(strings.Trim(word, "${}"))
	})
}
