package hosts

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/logtext"
	"muster/internal/proc"
	"muster/internal/tokenfile"
	"muster/launch"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/report"
	"muster/launch/rundir"
)

// SimulatedVariable is set for a muster that is one of the nodes of a simulation: it starts no more of them.
const SimulatedVariable = "MUSTER_SIMULATED"

// WantedVariable tells such a node how many nodes the job is to have, where it was started for that.
const WantedVariable = "MUSTER_SIMULATED_WANTED"

// SimulatedName is what the i-th simulated node is called, in specs and reports.
func SimulatedName(i int) string { return "node-" + strconv.Itoa(i) }

// SimulationConfig is a job all nodes of which run on this machine.
type SimulationConfig struct {
	Job job.Job
	// Nodes is how many there are.
	Nodes int
	// Argv and Environ are those that this process was started with: each node is started with them.
	Argv, Environ []string
	// NodeVariable names a node among those of the job's spec.
	NodeVariable string
	// Stdin is given to the nodes; Stdout and Stderr are where their output is shown.
	Stdin, Stdout, Stderr *os.File
	Console               Console
	// Guardian is the command of the guardian process.
	Guardian []string
	// RemoveOnDeath is what the guardian removes, too.
	RemoveOnDeath []string
	Log           zerolog.Logger
}

// Simulate runs the agents of a job's nodes on this machine: each is a muster of its own, started with the same command
// line, that takes itself for another node of the spec. The job has succeeded where one of them has: those that had to
// leave it say so themselves.
func Simulate(ctx context.Context, c SimulationConfig) (err error) {
	asked, log := &c.Job, c.Log
	if asked.StatusFile != "" {
		return errhint.Usagef("cannot use --status-file with --simulate-nodes: all nodes would write the same file")
	}
	ctx, in := launch.WatchSignals(ctx, asked.Stop.Handled, asked.Checkpoint.Signal)
	defer in.Close()
	view, err := simulatedView(ctx, c)
	if err != nil {
		return err
	}
	defer view.Close() //nolint:contextcheck // it bounds itself
	marker := "MUSTER_SIMULATION=" + strings.ToLower(rand.Text()[:12])
	tree, err := proc.Open(proc.Config{Log: log, Marker: marker, Guardian: c.Guardian, RemoveOnDeath: c.RemoveOnDeath})
	if err != nil {
		return fmt.Errorf("cannot look after processes: %w", err)
	}
	defer func() {
		if closeErr := tree.Close(); err == nil {
			err = closeErr
		}
	}()
	environ, chosen, err := simulatedEnviron(ctx, c)
	if err != nil {
		return err
	}
	environ = append(environ, marker)
	stops, stop, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot open a pipe for the simulated nodes: %w", err)
	}
	defer func() { _, _ = stop.Close(), stops.Close() }()
	log.Warn().Int("nodes", c.Nodes).Str("spec",
		asked.Fake).Msg("all nodes of this job and their accelerators are simulated on this machine: accelerator=fake")
	s := simulation{
		config: c, tree: tree, view: view, log: c.Console.NodesLog(c.Nodes), ends: make(chan *simulatedNode, 1024),
		stops: stops, stop: stop,
		told:   simulatedStatus{began: time.Now().UTC().Round(time.Millisecond)},
		places: rundir.FindPlaces(variable(c.Environ, "XDG_RUNTIME_DIR"), os.TempDir()),
	}
	defer s.ended()
	front := openFront(frontConfig{ //nolint:contextcheck // its end bounds itself
		RunID: simulatedID(c.Job), Name: asked.Command.Name, Role: control.Simulation, Environ: c.Environ, Grace: asked.Stop.Grace,
		Interrupts: in, Status: s.status, Events: &s.told.events, Ask: s.ask, Guard: tree.RemoveOnDeath, View: view, Log: log,
	})
	defer front.close()                 //nolint:contextcheck // it bounds itself
	defer func() { s.over(ctx, err) }() // before the front closes, which keeps how the job has ended
	s.environ = func(i int) []string {
		own := job.WithVariable(environ, c.NodeVariable, SimulatedName(i))
		if chosen { // the address is everybody's: the same rehearsal has the same host each time
			own = append(own, "MUSTER_RDZV_CONF=is_host="+strconv.FormatBool(i == 0))
		}
		return own
	}
	for i := range c.Nodes {
		if err := s.start(i); err != nil {
			stopErr := tree.Stop(context.WithoutCancel(ctx), proc.Ladder{Signal: syscall.SIGTERM, Grace: time.Second}, s.processes()...)
			if stopErr != nil {
				log.Error().Err(stopErr).Msg("nodes started so far could not be ended")
			}
			return err
		}
	}
	s.watch(ctx, in)
	if err := tree.Stop(context.WithoutCancel(ctx), proc.Ladder{Signal: syscall.SIGTERM, Grace: asked.Stop.Grace},
		s.processes()...); err != nil {
		return errhint.Code(err, errhint.Internal)
	}
	s.ended()
	defer c.Console.Flush()
	return s.outcome(ctx)
}

// simulatedView takes what the job names to be seen by: the nodes leave that to who simulates them.
func simulatedView(ctx context.Context, c SimulationConfig) (*launch.View, error) {
	var token []byte
	if file := c.Job.Meeting.TokenFile; c.Job.See.HTTP != "" && file != "" {
		var err error
		if token, err = tokenfile.Read(file, zerolog.Nop()); err != nil { // the nodes warn of it
			return nil, err
		}
	}
	return launch.OpenView(ctx, c.Job.See, token, c.Log)
}

// simulatedEnviron is the environment of the simulated nodes: where they meet, unless the command line says that.
// chosen reports that it does not.
func simulatedEnviron(ctx context.Context, c SimulationConfig) (environ []string, chosen bool, err error) {
	environ = append(slices.Clone(c.Environ), SimulatedVariable+"=1")
	if c.Job.RunID == "" {
		environ = append(environ, "MUSTER_RDZV_ID="+simulatedID(c.Job))
	}
	if len(c.Job.Meeting.Endpoints) > 0 {
		return environ, false, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, false, fmt.Errorf("cannot find a port at which the simulated nodes meet: %w", err)
	}
	at := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, false, err
	}
	return append(environ, "MUSTER_RDZV=muster://"+at), true, nil
}

// simulatedID is the run id of a simulated job.
func simulatedID(j job.Job) string { return cmp.Or(j.RunID, "simulated-"+strconv.Itoa(os.Getpid())) }

// node finds one of the nodes that answers, and returns its run directory, "" for none.
func (s *simulation) node(ctx context.Context) string {
	found, err := control.Find(ctx, s.places, rundir.Name(simulatedID(s.config.Job)))
	if err != nil {
		return ""
	}
	one := ""
	for _, f := range found {
		if f.Answer == nil || f.Answer.Muster.Role != control.Agent || f.RunID() != simulatedID(s.config.Job) {
			continue
		}
		if f.Answer.Phase != report.PhasePending { // a spare, or one that has just come, knows nothing
			return f.Dir
		}
		one = f.Dir
	}
	return one
}

// ask has one of the nodes do something with the job of all, and returns what it says about that. Nothing is done any more
// once all nodes were told to end.
func (s *simulation) ask(ctx context.Context, r control.Request) (said string, err error) {
	if s.told.isEnding() == "" {
		said, err = s.askNode(ctx, r)
	}
	if why := s.told.isEnding(); why != "" && said == "" { // it may have ended while it was asked
		err = errhint.Code(errors.New("the job is ending: "+why), errhint.TryAgain)
	}
	return said, err
}

func (s *simulation) askNode(ctx context.Context, r control.Request) (string, error) {
	dir := s.node(ctx)
	if dir == "" {
		return "", errhint.Code(errors.New("no node answers now"), errhint.TryAgain)
	}
	c := control.Dial(dir)
	if r.What == control.ScaleRequested {
		return s.scale(ctx, c, r)
	}
	return c.Do(ctx, r)
}

// scale has the job go on with so many nodes: those that are too many leave, those that it lacks are started. The others'
// workers run until these have come.
func (s *simulation) scale(ctx context.Context, c *control.Client, r control.Request) (string, error) {
	n := r.Nodes
	before, err := c.Status(ctx, control.World)
	if err != nil {
		return "", err
	}
	s.nodesMu.Lock()
	r.Starts = len(s.lackingLocked(n, n-before.Nodes)) > 0
	s.nodesMu.Unlock()
	text, err := c.Do(ctx, r)
	if err != nil {
		return "", err
	}
	s.nodesMu.Lock()
	defer s.nodesMu.Unlock()
	var names []string
	for _, i := range s.lackingLocked(n, n-before.Nodes) {
		if err := s.startLocked(i, WantedVariable+"="+strconv.Itoa(n)); err != nil {
			return "", err
		}
		names = append(names, SimulatedName(i))
	}
	if len(names) > 0 {
		text += "; started: " + strings.Join(names, ", ")
	}
	return text, nil
}

// lackingLocked are up to so many of the first n nodes that do not run.
func (s *simulation) lackingLocked(n, most int) (indices []int) {
	running := map[int]bool{}
	for _, node := range s.nodes {
		running[node.index] = running[node.index] || node.runs()
	}
	for i := 0; len(indices) < most && i < n; i++ {
		if !running[i] {
			indices = append(indices, i)
		}
	}
	return indices
}

// simulation is the nodes that run on this machine.
type simulation struct {
	config  SimulationConfig
	tree    *proc.Tree
	view    *launch.View  // takes their events
	log     io.Writer     // takes the nodes' logs
	places  rundir.Places // for all run directories
	environ func(i int) []string
	// stops is what each node has at stopsFD; stop is its other end, closed before all of them are told to end.
	stops, stop *os.File
	ends        chan *simulatedNode // each that has ended
	wg          sync.WaitGroup      // those who show their output, and their end behind it
	mu          sync.Mutex          // held while a line is shown
	tooFew      bool                // fewer nodes were left than a round needs
	why         []int               // the statuses of which a node has said why the job ended so
	told        simulatedStatus

	nodesMu sync.Mutex
	nodes   []*simulatedNode // all that were started, also those that another one of their index has followed
	closed  bool             // none is started any more
	seen    int              // that have ended, as far as follow knows
}

// simulatedNode is a muster that takes itself for a node of the spec.
type simulatedNode struct {
	*proc.Process
	index int
	state string // how the job stands, as it has said last
	// report says for people why the job has failed, empty where nothing has said so.
	report string
	left   bool // the job went on without it, as somebody wanted fewer nodes
}

func (n *simulatedNode) runs() bool {
	select {
	case <-n.Done():
		return false
	default:
		return true
	}
}

// processes are those of all nodes.
func (s *simulation) processes() []*proc.Process {
	s.nodesMu.Lock()
	defer s.nodesMu.Unlock()
	var all []*proc.Process
	for _, n := range s.nodes {
		all = append(all, n.Process)
	}
	return all
}

// started are the nodes that were started.
func (s *simulation) started() []*simulatedNode {
	s.nodesMu.Lock()
	defer s.nodesMu.Unlock()
	return slices.Clone(s.nodes)
}

// ended waits until all is shown that the nodes have said.
func (s *simulation) ended() {
	s.wg.Wait()
	s.config.Console.Flush()
}

// start starts a node. Its lines are shown behind its name.
func (s *simulation) start(i int) (err error) {
	s.nodesMu.Lock()
	defer s.nodesMu.Unlock()
	return s.startLocked(i)
}

// startLocked starts a node that has more variables than the others.
func (s *simulation) startLocked(i int, more ...string) (err error) {
	if s.closed {
		return errhint.Code(errors.New("cannot start a node: the job has just ended"), errhint.TryAgain)
	}
	said := []proc.Direction{proc.Out, proc.Out}
	if s.config.Job.See.EventsFile != "" {
		said = append(said, proc.Out) // eventsFD there
	}
	pipes, err := proc.NewPipes(said...)
	if err != nil {
		return fmt.Errorf("cannot read what node %s says: %w", SimulatedName(i), err)
	}
	n := &simulatedNode{index: i}
	n.Process, err = s.tree.Start(proc.Spec{
		Path: "/proc/self/exe", Args: s.config.Argv, Env: append(s.environ(i), more...), Label: SimulatedName(i),
		Files: slices.Concat([]*os.File{s.config.Stdin}, pipes.Theirs[:2], []*os.File{s.stops}, pipes.Theirs[2:]),
	})
	pipes.Settle(err)
	if err != nil {
		return fmt.Errorf("cannot start node %s: %w", SimulatedName(i), err)
	}
	var shown sync.WaitGroup
	for k, to := range []*os.File{s.config.Stdout, s.config.Stderr} {
		shown.Go(func() { s.show(pipes.Ours[k], to, n) })
	}
	for _, events := range pipes.Ours[2:] {
		shown.Go(func() { s.takeEvents(events) })
	}
	s.nodes = append(s.nodes, n)
	s.wg.Go(func() {
		<-n.Done()
		shown.Wait()
		s.tellEnd(n)
	})
	go func() {
		<-n.Done()
		if n.Exit().Success() { // its last words tell whether that is how the job ended
			shown.Wait()
		}
		s.ends <- n
	}()
	return nil
}

// What a simulated node has beside the standard streams: a pipe whose other end is closed when the whole job is to end,
// and where it writes its events, if who simulates it keeps a file of them.
const (
	stopsFD  = 3
	eventsFD = 4
)

// SimulationStops returns what reports for a simulated node whether the signal that ends it has gone to all nodes.
func SimulationStops() func() bool {
	unix.CloseOnExec(stopsFD) // no worker has it
	return func() bool {
		at := []unix.PollFd{{Fd: stopsFD}}
		_, err := unix.Poll(at, 0)
		return err == nil && at[0].Revents&unix.POLLHUP != 0
	}
}

// SimulatedEvents returns what takes the events of a simulated node whose job has a file for them.
func SimulatedEvents() func(line []byte) {
	unix.CloseOnExec(eventsFD) // no worker has it
	to := os.NewFile(eventsFD, "events")
	return func(line []byte) { _, _ = to.Write(line) } // a simulation that is gone is met elsewhere
}

// takeEvents takes a node's events.
func (s *simulation) takeEvents(from *os.File) {
	defer func() { _ = from.Close() }()
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if e, ok := eventOf(line); ok {
			s.view.Tell(e)
		}
		if err != nil {
			return
		}
	}
}

// maxEvent bounds an event of a node, in bytes.
const maxEvent = 64 << 10

// eventOf is an event that a node has sent, false for anything else.
func eventOf(line []byte) (e control.Event, ok bool) {
	return e, len(line) <= maxEvent && json.Unmarshal(line, &e) == nil && e.Type != ""
}

func (s *simulation) show(from *os.File, to io.Writer, n *simulatedNode) {
	defer func() { _ = from.Close() }()
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.line(line, to, n)
		}
		if err != nil {
			return
		}
	}
}

// LogMark stands in front of each line of a simulated node's log, which shares standard error with its workers (RFC
// 7464).
const LogMark = "\x1e"

// ReportMark stands in front of why the job has failed, as a simulated node says it: all of that as a string of Go.
const ReportMark = "\x1d"

// stateMark stands in front of how the job stands, as a simulated node says it.
const stateMark = "\x1c"

// workerMark stands in front of the lines of a simulated node's workers, which have a prefix of their own.
const workerMark = "\x1f"

// MarkNode makes a job that of a simulated node: the lines of its workers say whose they are, as those of a job on hosts
// do, and so does the directory of their files, which lies beside those of the others. It says how the job stands.
func MarkNode(j *job.Job, node string) {
	j.Logs.Node = node
	j.Logs.Prefix = workerMark + cmp.Or(j.Logs.Prefix, job.HostRankPrefix)
	j.StatusMark = stateMark
}

// line shows one line of a node, behind its name where no prefix of a worker says whose it is.
func (s *simulation) line(line string, to io.Writer, n *simulatedNode) {
	name := SimulatedName(n.index)
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, is := strings.CutPrefix(line, ReportMark); is {
		if report, err := strconv.Unquote(strings.TrimSuffix(text, "\n")); err == nil {
			n.report = report
			return
		}
	}
	if state, is := strings.CutPrefix(line, stateMark); is {
		if strings.HasSuffix(state, "\n") { // else the node was killed in the middle of it, and the one before counts
			n.state = state
		}
		return
	}
	if entry, ours := strings.CutPrefix(line, LogMark+"{"); ours {
		_, _ = fmt.Fprintf(s.log, `{"%s":%q,%s`, logtext.NodeKey, name, entry) // nobody could be told
		return
	}
	s.config.Console.EndWaiting()
	if of, marked := strings.CutPrefix(line, workerMark); marked {
		_, _ = fmt.Fprintf(to, "%s\n", strings.TrimSuffix(of, "\n"))
		return
	}
	_, _ = fmt.Fprintf(to, "[%s] %s\n", name, strings.TrimSuffix(line, "\n"))
}
