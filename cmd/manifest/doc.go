// Package manifest writes the files by which clusters are asked for a job of muster's: YAML for Kubernetes and the
// training operators on it, a batch script for Slurm. Each line that is not plain has a comment that says why it is
// there.
//
// Everything here is pure: a Spec in, bytes out. Nothing is looked up on the machine or in a cluster. cmd/muster reads
// the flags, and cmd/dialect/jobfile reads such files.
package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// kind is a kind of file that is written.
type kind struct {
	about string
	write func(Spec) string
	// environ are the variables by which the first node of the job knows the platform.
	environ func(Spec) (environ []string, hostname string)
	// refused are the flags that the kind has no use for, with the reason.
	refused map[string]string
}

// kinds are those that are written, by their names on the command line.
func kinds() map[string]kind {
	return map[string]kind{
		"k8s-job":    {"an indexed Job of Kubernetes, with a headless service", k8sJob, indexedEnviron, onKubernetes()},
		"jobset":     {"a JobSet with one group of nodes", jobSet, indexedEnviron, onKubernetes()},
		"trainjob":   {"a TrainJob of Kubeflow's Trainer (v2), with its runtime", trainJob, petEnviron, onKubernetes()},
		"pytorchjob": {"a PyTorchJob of Kubeflow's training operator (v1)", pytorchJob, petEnviron, onKubernetes()},
		"mpijob":     {"an MPIJob, whose launcher starts the workers over ssh", mpiJob, noEnviron, onMPI()},
		"volcano":    {"a Job of Volcano's own", volcanoJob, volcanoEnviron, onVolcano()},
		"slurm":      {"a batch script for Slurm's sbatch", slurm, slurmEnviron, onSlurm()},
	}
}

// Kinds are the names of the kinds that are written.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds())) }

// About says in a few words what a kind is.
func About(name string) string { return kinds()[name].about }

// Refused says why a kind has no use for a flag, empty where it has.
func Refused(name, flag string) string {
	if name == ToCommand {
		return onMachines()[flag]
	}
	return kinds()[name].refused[flag]
}

// Targets are what a job file is converted to.
func Targets() []string { return append(Kinds(), ToCommand) }

// Write writes the file of a job whose Spec has passed Check.
func Write(s Spec) []byte {
	if s.Kind == ToCommand {
		return []byte(commandLines(s))
	}
	return []byte(kinds()[s.Kind].write(s))
}

// Environ are the variables and the host name of the job's first node, as its platform sets them.
func Environ(s Spec) (environ []string, hostname string) {
	if s.Kind == ToCommand {
		return nil, ""
	}
	return kinds()[s.Kind].environ(s)
}

// because are flags that are refused for one reason.
func because(why string, flags ...string) map[string]string {
	list := map[string]string{}
	for _, f := range flags {
		list[f] = why
	}
	return list
}

func onKubernetes() map[string]string {
	return because("it is a setting of Slurm", "partition", "account")
}

func onMachines() map[string]string {
	return because("muster run by hand has no pods and no queues", "namespace", "gang", "queue", "accelerator", "accelerators", "rdma",
		"shm", "claim", "token-secret", "http", "backoff-limit", "partition", "account", "image", "topology", "cpu", "memory", "notice")
}

func onMPI() map[string]string {
	refused := onKubernetes()
	maps.Copy(refused, because("the launcher has no agent that could serve it", "http", "token-secret"))
	maps.Copy(refused, because("mpirun has no such flags: give MUSTER_ variables by --env", "flag"))
	maps.Copy(refused, because("its nodes begin with the launcher, and end with it", "notice"))
	return refused
}

func onVolcano() map[string]string {
	refused := onKubernetes()
	maps.Copy(refused, because("Volcano is the job's own scheduler", "gang"))
	return refused
}

func onSlurm() map[string]string {
	return because("Slurm has no pods: the machines have it", "namespace", "gang", "accelerator", "rdma", "shm", "claim", "token-secret",
		"http", "backoff-limit")
}

// rewrapped is a comment in lines of at most so many letters.
func rewrapped(text string, most int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > most {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// DefaultGang is who starts all pods of a kind together where a queue is named and nothing else.
func DefaultGang(name string) string {
	if name == "volcano" {
		return ""
	}
	return "kueue"
}
