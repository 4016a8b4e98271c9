package manifest

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-multierror"

	"muster/internal/lazyregexp"
)

// Spec is the job that a file asks for. The zero value of a field leaves it out, unless it says something else.
type Spec struct {
	// Kind is one of Kinds.
	Kind            string
	Name, Namespace string
	// Nodes is the number of nodes, from 1; Procs how many workers each has, a number or a word of muster run such as
	// gpu.
	Nodes int
	Procs string
	// Image is what the nodes' containers are made of.
	Image string
	// Queue is where the job waits; Gang, one of Gangs, is who starts all its pods together; empty: nobody.
	Queue, Gang string
	// Accelerator is the resource of a device, such as nvidia.com/gpu, of which each node has Accelerators.
	Accelerator  string
	Accelerators int
	// RDMA is a resource and how many of it each node has, such as rdma/hca=1.
	RDMA string
	// SharedMemory is the size of /dev/shm, CPU and Memory what each node is given; quantities of Kubernetes.
	SharedMemory, CPU, Memory string
	// Topology is the level of the network within which all nodes are placed.
	Topology string
	// TokenSecret is the Secret that has the job's token under the key token; Port is where --http serves.
	TokenSecret string
	Port        int
	// Claims are volumes, CLAIM:DIR.
	Claims []string
	// CkptDir is where checkpoints are saved.
	CkptDir string
	// Notice is how long before its end a node's workers hear of it, Grace how long they have from SIGTERM on.
	Notice, Grace time.Duration
	// MaxRestarts is how often workers are started anew on a node, BackoffLimit how often pods are because of a failure.
	MaxRestarts, BackoffLimit int
	// Deadline is how long the job may take; 0: as long as it wants.
	Deadline time.Duration
	// Env are variables of the workers, NAME=VALUE.
	Env []string
	// CleanPods is what an operator does with the pods of a job that has ended, by its own word; empty: None.
	CleanPods string
	// Partition and Account are Slurm's.
	Partition, Account string
	// NetworkCheck has nodes and links tested before the workers start.
	NetworkCheck bool
	// Flags are further flags of muster run, as they are typed there.
	Flags []string
	// Command is what workers run.
	Command []string
	// Converted is set where Convert has read the job from a file of another kind.
	Converted bool
}

// Gangs are those that start all pods of a job together.
var Gangs = []string{"kueue", "volcano", "koordinator"}

// maxNodes bounds the nodes of a job, as in a job file.
const maxNodes = 10_000

// maxRestarts bounds restarts.
const maxRestarts = 100_000

// saving is how long the newest step may take to disk after the workers have ended.
const saving = time.Minute

var (
	nameText     = lazyregexp.New(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	quantityText = lazyregexp.New(`^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$`)
	resourceText = lazyregexp.New(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$`)
	queueText    = lazyregexp.New(`^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$`)
	levelText    = lazyregexp.New(`^[A-Za-z0-9]([-A-Za-z0-9._/]*[A-Za-z0-9])?$`)
	variableText = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_.-]*$`)
	imageText    = lazyregexp.New(`^[^\s"'$\\#]+$`)
	dirText      = lazyregexp.New(`^/[^\s:"'$\\#]*$`)
)

// maxName leaves room in the 63 letters of a host name for what kinds put behind the job's name.
const maxName = 40

// Check reports all that is wrong with a job, each with its flag.
func (s *Spec) Check() error {
	var wrong *multierror.Error
	bad := func(flag, value, what string) {
		wrong = multierror.Append(wrong, fmt.Errorf("--%s %q: %s", flag, value, what))
	}
	slurm := s.Kind == "slurm"
	match := func(flag, value string, form func() *regexp.Regexp, what string) {
		if value != "" && !form().MatchString(value) {
			bad(flag, value, what)
		}
	}
	match("name", s.Name, nameText, "give lower-case letters, digits and dashes, a letter first")
	if s.Name == "" || len(s.Name) > maxName {
		bad("name", s.Name, fmt.Sprintf("give a name of 1 to %d letters: host names of the nodes are made of it", maxName))
	}
	match("namespace", s.Namespace, nameText, "give lower-case letters, digits and dashes, a letter first")
	if s.Nodes < 1 || s.Nodes > maxNodes {
		bad("nodes", strconv.Itoa(s.Nodes), fmt.Sprintf("give a number from 1 to %d", maxNodes))
	}
	if s.Image == "" && !slurm && s.Kind != ToCommand {
		wrong = multierror.Append(wrong, errors.New("--image is missing: name the image of the nodes' containers"))
	}
	if _, err := strconv.Atoi(s.Procs); err != nil && s.Kind == "mpijob" {
		bad("nproc-per-node", s.Procs, "give a number: mpirun is told how many workers there are in all")
	}
	match("image", s.Image, imageText, "give an image without blanks and quotes")
	match("queue", s.Queue, queueText, "give letters, digits, dashes, dots and underscores")
	match("partition", s.Partition, queueText, "give letters, digits, dashes, dots and underscores")
	match("account", s.Account, queueText, "give letters, digits, dashes, dots and underscores")
	match("token-secret", s.TokenSecret, nameText, "give the name of a Secret: lower-case letters, digits and dashes")
	match("accelerator", s.Accelerator, resourceText, "give a resource, such as nvidia.com/gpu")
	for _, q := range [][2]string{{"shm", s.SharedMemory}, {"cpu", s.CPU}, {"memory", s.Memory}} {
		match(q[0], q[1], quantityText, "give an amount such as 8, 500m or 16Gi")
	}
	if slurm && strings.ContainsAny(s.CPU, ".mkMGTPE") {
		bad("cpu", s.CPU, "Slurm gives whole CPUs: give a whole number")
	}
	match("topology", s.Topology, levelText, "give a label of nodes, such as topology.kubernetes.io/rack, or a number of a tier")
	match("ckpt-dir", s.CkptDir, dirText, "give a path from the root, without blanks, quotes and colons")
	if s.Gang != "" && !slices.Contains(Gangs, s.Gang) {
		bad("gang", s.Gang, "choose one of "+strings.Join(Gangs, ", "))
	}
	if _, err := strconv.Atoi(s.Topology); err != nil && s.Topology != "" && (slurm || s.Gang == "volcano" || s.Kind == "volcano") {
		bad("topology", s.Topology, "give a number: of a tier for Volcano, of switches for Slurm")
	}
	if s.Gang == "kueue" && s.Queue == "" {
		bad("gang", s.Gang, "it needs --queue: Kueue knows jobs by their queues")
	}
	if s.RDMA != "" {
		if name, n, ok := s.rdma(); !ok || !resourceText().MatchString(name) || n < 1 {
			bad("rdma", s.RDMA, "give a resource and its number, such as rdma/hca=1")
		}
	}
	for _, c := range s.Claims {
		if name, dir, ok := strings.Cut(c, ":"); !ok || !nameText().MatchString(name) || !dirText().MatchString(dir) {
			bad("claim", c, "give CLAIM:DIR, such as data:/data")
		}
	}
	for _, e := range s.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || !variableText().MatchString(name) || unwritable(e) {
			bad("env", name, "give NAME=VALUE")
		}
	}
	s.checkNumbers(bad)
	if s.Port != 0 && s.TokenSecret == "" {
		bad("http", strconv.Itoa(s.Port),
			"it needs --token-secret: other machines reach a pod, and muster shows a job there only to who has its token")
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		wrong = multierror.Append(wrong, errors.New("the command is missing: name it behind --, as in -- python train.py"))
	}
	if i := slices.IndexFunc(s.Command, unwritable); i >= 0 {
		wrong = multierror.Append(wrong, fmt.Errorf("word %d of the command is no text: a file of YAML cannot have it", i+1))
	}
	if i := slices.IndexFunc(s.Flags, unwritable); i >= 0 {
		bad("flag", s.Flags[i], "it is no text")
	}
	if wrong != nil && len(wrong.Errors) == 1 {
		return wrong.Errors[0]
	}
	return wrong.ErrorOrNil()
}

// unwritable reports whether a word is no text that a file can have.
func unwritable(word string) bool { return strings.ContainsRune(word, 0) || !utf8.ValidString(word) }

func (s *Spec) checkNumbers(bad func(flag, value, what string)) {
	if s.Accelerators < 0 || s.Accelerators > 256 {
		bad("accelerators", strconv.Itoa(s.Accelerators), "give a number from 0 to 256")
	}
	if s.Port < 0 || s.Port > 65535 {
		bad("http", strconv.Itoa(s.Port), "give a port up to 65535")
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"max-restarts", s.MaxRestarts}, {"backoff-limit", s.BackoffLimit}} {
		if n.value < 0 || n.value > maxRestarts {
			bad(n.flag, strconv.Itoa(n.value), fmt.Sprintf("give a number from 0 to %d", maxRestarts))
		}
	}
	for _, d := range []struct {
		flag        string
		value, most time.Duration
	}{{"notice", s.Notice, 24 * time.Hour}, {"grace", s.Grace, 24 * time.Hour}, {"deadline", s.Deadline, 366 * 24 * time.Hour}} {
		if d.value < 0 || d.value > d.most || d.value%time.Second != 0 {
			bad(d.flag, d.value.String(), "give whole seconds, such as 90s or 12h")
		}
	}
	if s.Deadline != 0 && s.Deadline < s.ending() {
		bad("deadline", s.Deadline.String(), fmt.Sprintf("the end of a job alone takes %s: give more, or less of --notice and --grace",
			s.ending()))
	}
}

// rdma is the resource of RDMA, and how many of it a node has.
func (s *Spec) rdma() (name string, n int, ok bool) {
	name, text, ok := strings.Cut(s.RDMA, "=")
	n, err := strconv.Atoi(text)
	return name, n, ok && err == nil
}

// ending is how long the end of a node takes: the notice, the grace of its workers, the newest step to disk.
func (s *Spec) ending() time.Duration { return s.Notice + s.Grace + saving }

func seconds(d time.Duration) int { return int(d / time.Second) }

// noticeFile is what a preStop hook makes in a container.
const noticeFile = "/tmp/muster-notice"

// tokenDir is where a Secret's files lie in a container.
const tokenDir = "/etc/muster"

// flag is a flag of muster run, or another word of its command line, with the reason why it is there.
type flag struct{ text, why string }

// shared are the flags of muster run behind those by which nodes meet.
func (s *Spec) shared() []flag {
	flags := []flag{{"--nproc-per-node=" + s.Procs, "Workers on each node."}}
	add := func(on bool, text, why string) {
		if on {
			flags = append(flags, flag{text, why})
		}
	}
	add(s.TokenSecret != "", "--token-file="+tokenDir+"/token", "Nodes prove to each other by it that they belong to the job.")
	add(s.Port != 0, fmt.Sprintf("--http=0.0.0.0:%d", s.Port),
		"The probes below are answered here; all else is shown to who has the token.")
	add(s.NetworkCheck, "--network-check", "Nodes and links are tested before the workers start. A node at fault leaves with status 80.")
	add(s.MaxRestarts > 0, fmt.Sprintf("--max-restarts=%d", s.MaxRestarts),
		"Failed workers are started anew on their nodes, without new pods.")
	if s.Kind == "slurm" {
		flags[len(flags)-1].why = strings.ReplaceAll(flags[len(flags)-1].why, ", without new pods", "")
	}
	add(s.Grace > 0, fmt.Sprintf("--grace=%ds", seconds(s.Grace)), "Time that workers have from SIGTERM to SIGKILL.")
	add(s.Kind == "volcano" && s.Deadline > 0, fmt.Sprintf("--active-deadline=%ds", seconds(s.Deadline)),
		"Volcano gives a job no limit of time. This is that of each start.")
	add(s.CkptDir != "", "--ckpt-dir="+s.CkptDir, "Checkpoints are kept in memory and written here behind the training.")
	return flags
}

// further are the flags that the user gave as they are.
func (s *Spec) further() []flag {
	var flags []flag
	for _, f := range s.Flags {
		flags = append(flags, flag{f, ""})
	}
	return flags
}

// Args are the arguments of muster run on each node, as the file has them.
func (s *Spec) Args() []string {
	var args []string
	for _, f := range s.words() {
		args = append(args, f.text)
	}
	return append(append(args, "--"), s.Command...)
}

// words are the flags of muster run in the file.
func (s *Spec) words() []flag {
	flags := s.meeting()
	flags = append(flags, s.shared()...)
	switch s.Kind {
	case ToCommand:
	case "slurm":
		flags = append(flags, flag{slurmNotice, "The file that the script makes: the newest step goes to disk while training goes on."})
	default:
		flags = append(flags, flag{
			"--ckpt-on-file=" + noticeFile,
			"The preStop hook below makes it: the newest step goes to disk while training goes on.",
		})
	}
	return append(flags, s.further()...)
}

// meeting are the flags by which nodes meet.
func (s *Spec) meeting() []flag {
	if s.Kind == ToCommand && s.Nodes > 1 {
		return []flag{{text: fmt.Sprintf("--nnodes=%d", s.Nodes)}, {text: "--node-rank=0"}, {text: "--master-addr=HOST0"}}
	}
	if s.Kind != "k8s-job" && s.Kind != "jobset" || s.Nodes == 1 {
		return nil // the platform's variables say it
	}
	var places []string
	for i := range min(s.Nodes, 3) {
		places = append(places, fmt.Sprintf("%s.%s", s.podName(i), s.Name))
	}
	why := "Where the nodes meet: a store of muster's in the first pod, by the name that the headless service gives it."
	if len(places) > 1 {
		why += " It moves to a later one of these when that pod dies."
	}
	return []flag{
		{"--run-id=" + s.Name, "The name under which the nodes of this job meet."},
		{
			fmt.Sprintf("--nnodes=%d", s.Nodes),
			"An indexed job has its index in JOB_COMPLETION_INDEX, but the number of pods in no variable.",
		},
		{"--rdzv=muster://" + strings.Join(places, ","), why},
	}
}

// podName is the host name of a pod of an indexed job.
func (s *Spec) podName(i int) string {
	if s.Kind == "jobset" {
		return fmt.Sprintf("%s-node-0-%d", s.Name, i)
	}
	return fmt.Sprintf("%s-%d", s.Name, i)
}
