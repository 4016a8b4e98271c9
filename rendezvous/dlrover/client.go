package dlrover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/pickle"
)

// How the master speaks (DLROVER_MASTER_SERVICE_TYPE).
const (
	GRPC = "grpc"
	HTTP = "http"
)

const (
	firstPause     = 200 * time.Millisecond
	lastPause      = 3 * time.Second
	connectTimeout = 5 * time.Second
	// defaultTimeout bounds one call where MASTER_CLIENT_TIMEOUT says nothing, as DLRover's agents do.
	defaultTimeout = time.Minute
	// patience is how long a call that the job cannot do without is repeated: DLRover's agents try ten times, with 5 s
	// between.
	patience = 50 * time.Second
	// maxPlaces bounds the nodes of a round, and the workers of one, so that sums stay numbers.
	maxPlaces = 1 << 16
)

// Names of the master's two rendezvous.
const (
	training     = "elastic-training"
	networkCheck = "network-check"
)

// ClientConfig says where the master is, and who speaks to it.
type ClientConfig struct {
	Addr    string // host:port
	Service string // GRPC or HTTP
	// NodeID, NodeType and NodeIP are this pod's, JobUID that of the ElasticJob; the last two may be empty.
	NodeID                   int
	NodeType, NodeIP, JobUID string
	Timeout                  time.Duration // of one call; 0: 60 s
	// Patience is how long a call is repeated that the job cannot do without; 0: 50 s.
	Patience time.Duration
	Log      zerolog.Logger
}

// Client speaks to a master as one node. Its methods are safe for concurrent use.
type Client struct {
	cfg  ClientConfig
	wire wire
}

// NewClient returns a client that has sent nothing yet.
func NewClient(cfg ClientConfig) (*Client, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Patience <= 0 {
		cfg.Patience = patience
	}
	from := sender{id: cfg.NodeID, kind: cfg.NodeType, jobUID: cfg.JobUID}
	c := &Client{cfg: cfg}
	switch cfg.Service {
	case GRPC:
		w, err := dialGRPC(cfg.Addr, from)
		if err != nil {
			return nil, fmt.Errorf("cannot speak to the master at %s: %w", cfg.Addr, err)
		}
		c.wire = w
	case HTTP:
		c.wire = dialHTTP(cfg.Addr, from)
	default:
		return nil, fmt.Errorf("internal error: a master that speaks %q", cfg.Service)
	}
	return c, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.wire.close() }

func (c *Client) String() string { return "DLRover's master at " + c.cfg.Addr }

// get asks once, and returns the answer of a class.
func (c *Client) get(ctx context.Context, m message, class string) (object, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	data, err := c.wire.get(ctx, pickled(m))
	var o object
	if err == nil {
		o, err = unpickled(data, class)
	}
	if err != nil {
		return o, fmt.Errorf("cannot use the answer of %s to a %s: %w", c, m.class, err)
	}
	return o, nil
}

// report tells once.
func (c *Client) report(ctx context.Context, m message) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	taken, err := c.wire.report(ctx, pickled(m))
	if err != nil {
		return fmt.Errorf("cannot tell %s a %s: %w", c, m.class, err)
	}
	if !taken {
		return fmt.Errorf("%s does not take a %s", c, m.class)
	}
	return nil
}

// insist repeats what the job cannot do without until it succeeds, or patience ends.
func (c *Client) insist(ctx context.Context, call func(context.Context) error) error {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, c.cfg.Patience)
	defer cancel()
	told := false
	var before error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := call(bounded)
		if err != nil && bounded.Err() != nil && before != nil {
			err = before // the last try was cut short, and says nothing
		}
		before = err
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errOtherJob):
			return errhint.Usagef("%w: JOB_UID=%s is not its", err, c.cfg.JobUID)
		}
		if bounded.Err() == nil {
			if !told {
				told = true
				c.cfg.Log.Warn().Err(err).Msg("asking the master again")
			}
			select {
			case <-time.After(pause):
				continue
			case <-bounded.Done():
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		err = fmt.Errorf("%w; given up after %v", err, time.Since(began).Round(time.Second))
		return errhint.Code(errhint.With(err, "does the pod of the master run, and is DLROVER_MASTER_ADDR its address?"), errhint.TryAgain)
	}
}

// place is a node of a round: its node rank and how many workers it brings.
type place struct{ rank, workers int }

// world is what the master says of a rendezvous: the round that was completed last and its nodes in order, none while
// nodes are gathered. Of a network check they are those of a group.
type world struct {
	round, group int
	nodes        []place
}

// index returns which of its nodes has a rank, -1 for none.
func (w world) index(rank int) int {
	return slices.IndexFunc(w.nodes, func(p place) bool { return p.rank == rank })
}

func (c *Client) commWorld(ctx context.Context, name string, rank int) (w world, err error) {
	m := message{"CommWorldRequest", []attr{{"node_id", rank}, {"local_world_size", 0}, {"rdzv_name", name}}}
	o, err := c.get(ctx, m, "RendezvousState")
	if err != nil {
		return w, err
	}
	wrong := func(err error) (world, error) {
		return world{}, fmt.Errorf("cannot use the round that %s tells: %w", c, err)
	}
	if w.round, err = o.number("round"); err != nil {
		return wrong(err)
	}
	if w.group, err = o.number("group"); err != nil {
		return wrong(err)
	}
	items, err := o.dict("world")
	if err != nil {
		return wrong(err)
	}
	if len(items) > maxPlaces {
		return wrong(fmt.Errorf("it has %d nodes, limit is %d", len(items), maxPlaces))
	}
	for _, p := range items {
		rank, isRank := p.Key.(int64)
		workers, isCount := p.Value.(int64)
		if !isRank || !isCount || rank < 0 || rank > math.MaxInt32 || workers < 1 || workers > maxPlaces {
			return wrong(errors.New("its world is no dict of node ranks and numbers of workers"))
		}
		w.nodes = append(w.nodes, place{int(rank), int(workers)})
	}
	return w, nil
}

func (c *Client) join(ctx context.Context, name string, rank, workers int) error {
	m := message{"JoinRendezvousRequest", []attr{
		{"node_id", c.cfg.NodeID}, {"local_world_size", workers}, {"rdzv_name", name}, {"node_rank", rank}, {"node_ip", c.cfg.NodeIP},
	}}
	_, err := c.get(ctx, m, "RendezvousState")
	return err
}

// waiting returns how many nodes wait for the next round; negative when the job is stopping.
func (c *Client) waiting(ctx context.Context, name string) (int, error) {
	m := message{"WaitingNodeNumRequest", []attr{{"node_id", 0}, {"local_world_size", 0}, {"rdzv_name", name}}}
	o, err := c.get(ctx, m, "RendezvousState")
	if err != nil {
		return 0, err
	}
	return o.number("waiting_num")
}

// Why a question for the outcome of a network check has no answer yet.
const (
	reasonWaiting = "Waiting node"
	reasonNoInit  = "Not Initialized"
)

// checkResult returns the ranks of nodes that a network check has found, by what the request asks for, and why there is
// no answer.
func (c *Client) checkResult(ctx context.Context, request string) (ranks []int, reason string, err error) {
	o, err := c.get(ctx, message{request, nil}, "NetworkCheckResult")
	if err != nil {
		return nil, "", err
	}
	items, err := o.list("nodes")
	if err == nil {
		reason, err = o.text("reason")
	}
	for _, item := range items {
		rank, is := item.(int64)
		if !is || rank < 0 || rank > math.MaxInt32 {
			err = errors.New("its nodes are no node ranks")
			break
		}
		ranks = append(ranks, int(rank))
	}
	if err != nil {
		return nil, "", fmt.Errorf("cannot use what %s says of a network check: %w", c, err)
	}
	return ranks, reason, nil
}

// running returns how many nodes the master takes for running.
func (c *Client) running(ctx context.Context) (int, error) {
	o, err := c.get(ctx, message{"RunningNodesRequest", nil}, "RunningNodes")
	if err != nil {
		return 0, err
	}
	items, err := o.list("nodes")
	return len(items), err
}

// params tells how many nodes a round has; of all nodes the first one counts.
func (c *Client) params(ctx context.Context, least, most int, lastCall time.Duration, unit int, join time.Duration) error {
	return c.report(ctx, message{"RendezvousParams", []attr{
		{"min_nodes", least},
		{"max_nodes", most},
		{"waiting_timeout", seconds(lastCall)},
		{"node_unit", unit},
		{"join_timeout", seconds(join)},
	}})
}

func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

func (c *Client) set(ctx context.Context, key string, value []byte) error {
	return c.report(ctx, message{"KeyValuePair", []attr{{"key", key}, {"value", value}, {"op", "set"}}})
}

// lookUp returns the value under a key, empty for none: it does not wait.
func (c *Client) lookUp(ctx context.Context, key string) ([]byte, error) {
	o, err := c.get(ctx, message{"KeyValuePair", []attr{{"key", key}, {"value", []byte{}}, {"op", "get"}}}, "KeyValuePair")
	if err != nil {
		return nil, err
	}
	return o.bytes("value")
}

// add adds to the number under a key and returns the sum.
func (c *Client) add(ctx context.Context, key string, delta int) (int, error) {
	o, err := c.get(ctx, message{"KeyValuePair", []attr{{"key", key}, {"value", delta}, {"op", "add"}}}, "KeyValuePair")
	if err != nil {
		return 0, err
	}
	return o.number("value")
}

// addOne adds 1 to the number under a key and returns a sum that has it. It insists, and adds no second time what may
// have arrived although the answer was lost: where the number has grown meanwhile, it takes that for its own doing.
func (c *Client) addOne(ctx context.Context, key string) (sum int, err error) {
	before, tried := 0, false
	err = c.insist(ctx, func(ctx context.Context) (err error) {
		if sum, err = c.add(ctx, key, 0); err != nil || tried && sum > before {
			return err
		}
		before, tried = sum, true
		sum, err = c.add(ctx, key, 1)
		return err
	})
	return sum, err
}

// lookUpAll returns the values of all keys, nil where one of them is missing.
func (c *Client) lookUpAll(ctx context.Context, keys []string) (map[string][]byte, error) {
	wanted := make(dict, len(keys))
	for i, key := range keys {
		wanted[i] = pickle.Pair{Key: key, Value: []byte{}}
	}
	o, err := c.get(ctx, message{"KeyValuePairs", []attr{{"kvs", wanted}, {"op", "get"}}}, "KeyValuePairs")
	if err != nil {
		return nil, err
	}
	items, err := o.dict("kvs")
	if err != nil {
		return nil, fmt.Errorf("cannot use the values that %s holds: %w", c, err)
	}
	found := make(map[string][]byte, len(items))
	for _, p := range items {
		key, isKey := p.Key.(string)
		value, isValue := p.Value.([]byte)
		if !isKey || !isValue {
			return nil, fmt.Errorf("cannot use the values that %s holds: one of them is %s", c, pickle.Describe(p.Value))
		}
		found[key] = value
	}
	for _, key := range keys {
		if len(found[key]) == 0 {
			return nil, nil
		}
	}
	return found, nil
}

// Events that a node tells of itself.
const (
	eventPreCheck  = "WAIT_PRE_CHECK"
	eventSucceeded = "SUCCEEDED_EXITED"
	eventFailed    = "FAILED_EXITED"
	eventChecked   = "NODE_CHECK_SUCCEEDED"
	eventFaulty    = "NODE_CHECK_FAILED"
)

func (c *Client) event(ctx context.Context, kind, text string, elapsed time.Duration, rank int) error {
	node := message{"NodeMeta", []attr{
		{"type", c.cfg.NodeType},
		{"addr", c.cfg.NodeIP},
		{"memory", 0},
		{"cpu", 0.0},
		{"gpu", 0},
		{"gpu_type", ""},
		{"id", c.cfg.NodeID},
		{"rank", rank},
		{"status", ""},
	}}
	return c.report(ctx, message{"NodeEvent", []attr{
		{"event_type", kind},
		{"event_message", text},
		{"event_time", float64(time.Now().Unix())},
		{"event_elapsed_time", elapsed.Seconds()},
		{"node", node},
	}})
}

// Levels of a failure.
const (
	levelRendezvous = "rdzv_error"
	levelProcess    = "process_error"
	levelNode       = "node_error"
)

// failure tells of one; data is what DLRover's agents say of it at that level.
func (c *Client) failure(ctx context.Context, data string, restarts int, level string) error {
	return c.report(ctx, message{"NodeFailure", []attr{{"error_data", data}, {"restart_count", restarts}, {"level", level}}})
}

// resources tells what this node uses: memory in MiB, CPUs.
func (c *Client) resources(ctx context.Context, memory int, cpus float64) error {
	return c.report(ctx, message{"ResourceStats", []attr{{"memory", memory}, {"cpu", cpus}, {"gpu_stats", []any{}}}})
}

// step tells how far the job has come.
func (c *Client) step(ctx context.Context, step int64, at time.Time) error {
	return c.report(ctx, message{"GlobalStep", []attr{{"timestamp", at.Unix()}, {"step", step}, {"elapsed_time_per_step", 0.0}}})
}

// RunConfig returns the names of the options that the master switches on.
func (c *Client) RunConfig(ctx context.Context) (names []string, err error) {
	err = c.insist(ctx, func(ctx context.Context) error {
		o, err := c.get(ctx, message{"ElasticRunConfigRequest", nil}, "ElasticRunConfig")
		if err != nil {
			return err
		}
		items, err := o.dict("configs")
		if err != nil {
			return fmt.Errorf("cannot use the options of %s: %w", c, err)
		}
		names = nil
		for _, p := range items {
			if name, is := p.Key.(string); is {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

// preCheck returns the state of the master's own check of the job.
func (c *Client) preCheck(ctx context.Context) (string, error) {
	o, err := c.get(ctx, message{"PreCheckRequest", []attr{{"timestamp", time.Now().Unix()}, {"type", "INITIAL"}}}, "PreCheckResponse")
	if err != nil {
		return "", err
	}
	return o.text("status")
}

// action is what the master wants of a node.
type action struct {
	class string
	Type  string `json:"action_type"`
	// Of an event, which the master wants reported back.
	EventType     string         `json:"event_type"`
	EventInstance string         `json:"event_instance"`
	EventAction   string         `json:"event_action"`
	EventMessage  string         `json:"event_msg"`
	EventLabels   map[string]any `json:"event_labels"`
	Reason        string         `json:"reason"`
}

// heartbeat says that this node lives, and returns what the master wants.
func (c *Client) heartbeat(ctx context.Context) (a action, err error) {
	o, err := c.get(ctx, message{"HeartBeat", []attr{{"timestamp", time.Now().Unix()}}}, "HeartbeatResponse")
	if err != nil {
		return a, err
	}
	inner, err := asObject(o.attrs["action"], "DiagnosisAction")
	if err != nil {
		return a, fmt.Errorf("cannot use what %s wants: %w", c, err)
	}
	class, err := inner.text("action_cls")
	if err != nil {
		return a, fmt.Errorf("cannot use what %s wants: %w", c, err)
	}
	if class == "" || class == "NoAction" {
		return action{class: class}, nil
	}
	content, err := inner.text("action_content")
	if err == nil {
		err = json.Unmarshal([]byte(content), &a)
	}
	if err != nil {
		return action{}, fmt.Errorf("cannot use what %s wants: %w", c, err)
	}
	a.class = class
	return a, nil
}

// sayEvent reports an event that the master wants reported.
func (c *Client) sayEvent(ctx context.Context, a action) error {
	labels := dict{}
	for name, value := range a.EventLabels {
		labels = append(labels, pickle.Pair{Key: name, Value: fmt.Sprint(value)})
	}
	return c.report(ctx, message{"Event", []attr{
		{"event_type", a.EventType}, {"instance", a.EventInstance}, {"action", a.EventAction}, {"msg", a.EventMessage}, {"labels", labels},
	}})
}
