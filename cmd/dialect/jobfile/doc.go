// Package jobfile reads the files by which clusters are asked for training jobs (the custom resources of training
// operators, and Kubernetes' own jobs), and says what muster does with each of their lines.
//
// A replica of the file, a pod, becomes a node with one worker: the container's command. A launcher inside the command,
// such as torchrun, is muster under that name. What the operator and the kubelet would do for the pod, muster's agent
// does: it tells the pod the operator's variables, restarts it as the file's policies say, and ends it with the job.
//
// Everything here is pure, as in cmd/dialect: files are read through Options only, and nothing is looked up on the
// machine. Each value keeps the line that it stands in.
package jobfile

import (
	"errors"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/launch/job"
)

// Options say which job of a file is wanted, and how it is read.
type Options struct {
	// File is the path of the file, as it is named in messages, and Content what stands in it.
	File    string
	Content []byte
	// Kind and Name choose among several jobs; empty: there is one.
	Kind, Name string
	// NameFlag is what chooses one by its name; empty: --name.
	NameFlag string
	// Set are changes, "path=value", that are made before anything is read.
	Set []string
	// Secrets is a directory with a directory for each Secret and ConfigMap, and a file in it for each key; empty:
	// none.
	Secrets string
	// Given are the variables that somebody else gives the workers, and that the file need not.
	Given map[string]bool
	// Success reports whether somebody else says whose success is the job's, by --success-policy: what the file says of it
	// has no effect.
	Success bool
	// Lenient lists unknown fields where they would be refused. Explain lists what is missing for a start.
	Lenient, Explain bool
	// Args stand behind the arguments of every replica's command.
	Args []string
	// Run reads the arguments of muster run, which may be a pod's command, and the pod's variables that stand for its
	// flags; nil refuses it there.
	Run func(args, environ []string) (flags []RunFlag, command []string, err error)
	// Stronger reports whether somebody else gives a setting: what the file says of it has no effect. nil: nobody does.
	Stronger func(flag string) bool
	// ReadFile reads a file, ReadDir the names in a directory.
	ReadFile func(name string) ([]byte, error)
	ReadDir  func(name string) ([]string, error)
}

// RunFlag is a flag of muster run in a pod's command, or a variable of the pod that stands for one.
type RunFlag struct {
	// Name is the setting that it sets, and Text its value.
	Name, Text string
	// Variable is the variable that says it; empty: a flag does.
	Variable string
	// Left says why it is left to the cluster; empty: it counts here, too.
	Left string
	// Instead is what counts in the place of a variable; empty: it counts itself.
	Instead string
	// Refused says of a variable that no pod of a job file can have it.
	Refused bool
}

// State says what becomes of a line.
type State string

// The states of lines.
const (
	// Applied is what muster does as the line says.
	Applied State = "applied"
	// Mapped is what muster does in its own way.
	Mapped State = "mapped"
	// Cluster is what muster leaves to the cluster.
	Cluster State = "cluster"
	// Missing is what a start would need and is not there.
	Missing State = "missing"
	// Unknown is a field that nobody knows.
	Unknown State = "unknown"
)

// Line is one value of the file, or a part of it that is left to the cluster as a whole.
type Line struct {
	// Path is the field, such as spec.runPolicy.backoffLimit, and Source its place: "file:line", or "--set path".
	Path   string `json:"path"`
	Source string `json:"source"`
	line   int
	node   *yaml.Node
	// Value is what stands there, shortened; empty for maps and lists, and for values that may be secrets.
	Value string `json:"value,omitempty"`
	State State  `json:"state"`
	// As says what muster makes of it, or why it leaves it.
	As string `json:"as"`
}

// Place is Source with the column.
func (l Line) Place() string {
	if l.node == nil || strings.HasPrefix(l.Source, "--set ") {
		return l.Source
	}
	return l.Source + ":" + strconv.Itoa(l.node.Column)
}

// Decode decodes what stands there, as yaml.Unmarshal does.
func (l Line) Decode(into any) error {
	if l.node == nil {
		return errors.New("the line has no value")
	}
	return l.node.Decode(into)
}

// Word is a setting of muster's own, by the name of its flag, that follows from the file.
type Word struct {
	Flag, Text string
	Source     job.Source
	// Own is set where muster run in a pod's command has the flag, or is told it by a variable: it is stronger than what
	// the file says elsewhere.
	Own bool
	// Variable is the variable of the container that says it; empty: none does.
	Variable string
	// Secret says that the text of a Secret is in Text.
	Secret bool

	at   value           // where it stands
	open map[string]bool // variables that have another value in each pod
}

// File is a job as a file has it.
type File struct {
	Kind, Name, Namespace string
	// Words are settings of the job; Lines all lines of the file in their order.
	Words []Word
	Lines []Line
	// Pods are the replicas in the order of their ranks. Where there is a Launcher, it alone runs a command, and
	// reaches the pods as its hosts.
	Pods     []Pod
	Launcher *Pod
	// Native reports whether the pods run muster run: the commands of Pods are those of its workers.
	Native bool
	// Apart are the flags of their muster run that are left to the cluster.
	Apart []Word
	// Accelerated reports whether some container asks for accelerators.
	Accelerated bool

	shape shape
	port  int // at which pods meet, in the cluster
	// beside are the variables that the operator gives a pod.
	beside func(f *File, i int, at Places) []job.Var
	// files are what the operator mounts into the launcher, by their paths there.
	files func(at Places) map[string]string
	// reached are the rules by which the launcher's hosts come and go, by the hostfile among the files; nil: they do not.
	reached *job.ReachedHosts
	// schedule is how long the Launcher waits for its hosts, empty: the file does not say it. given are the variables that
	// somebody else gives the workers.
	schedule string
	given    map[string]bool
	// lacking are the words of commands that Lacks has told of.
	lacking map[*yaml.Node]bool
}

// shape is what kinds with elastic meetings know of them.
type shape struct {
	nnodes, procs string
	elastic       bool
	least         int    // of the nodes of an elastic job
	backend       string // of torchrun's rendezvous; empty: none
	endpoint      string // outside of the job
	conf          string
	restarts      string
	slots         int
	mpi           string
}

// Pod is one replica.
type Pod struct {
	// Role is its group in the file, Name what the cluster would call it, Index its number in the group.
	Role, Name string
	Index      int
	// Argv is its command, as the file has it.
	Argv []string
	// Accelerators are how many it asks for, of Vendor as specs of fake accelerators name it, as Resource in the file.
	Accelerators     int
	Vendor, Resource string
	// Source is where the number of replicas stands.
	Source job.Source

	env   []variable
	lists []value // in which the words of Argv stand
}

// Places are where a job's nodes are.
type Places struct {
	// Hosts are the nodes' names or addresses, in the order of their ranks; Port is where pods meet, on the first.
	Hosts []string
	Port  int
	// Hide has commands be as they may be shown, and not run: with $(NAME) where the value of NAME comes from a Secret.
	Hide bool
}

// retell says something else of a value and of what is below it.
func (f *File) retell(v value, state State, as string) {
	for i := range f.Lines {
		l := &f.Lines[i]
		if rest, below := strings.CutPrefix(l.Path, v.path); below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			l.State, l.As = state, as
		}
	}
}

// unread says of the variables of containers that no process of muster's is in, that nobody reads them.
func (f *File) unread(t template) {
	for _, field := range []string{".env", ".envFrom"} {
		env := t.container
		env.path += field
		f.retell(env, Cluster, "processes that the launcher starts over ssh do not have the variables of the container")
	}
}
