package plan

import (
	"encoding/json"
	"net"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/launch/job"
	"muster/rendezvous"
)

// Places are where the workers of a round are to listen for each other, by programs of frameworks that
// EnvRules.Profile names. All nodes of the round have the same.
type Places struct {
	// Coordinator is the address and port for a service of the worker with rank 0; Workers those of each rank.
	Coordinator string
	Workers     []string
}

// placesLater stands for places that are not chosen yet.
const placesLater = "<chosen when a round starts>"

// FuturePlaces stand for the places of rounds that will be.
func FuturePlaces() *Places { return &Places{Coordinator: placesLater} }

// At returns the plan for workers that listen at these places; nil: they are not told.
func (p *Plan) At(places *Places) *Plan {
	at := *p
	at.places = places
	return &at
}

// future reports whether the places are not chosen yet.
func (l *Places) future() bool { return l.Coordinator == placesLater }

// maxVariable is how many bytes of a variable Linux passes to a program, with its name (MAX_ARG_STRLEN).
const maxVariable = 128 << 10

// ProfileLike are variables of EnvRules.Profile that have the value of one of torchelastic's.
func (p *Plan) ProfileLike() map[string]string {
	switch p.Job.Env.Profile {
	case job.ProfilePaddle:
		return map[string]string{
			"PADDLE_TRAINER_ID": "RANK", "PADDLE_TRAINERS_NUM": "WORLD_SIZE", "PADDLE_GLOBAL_RANK": "RANK",
			"PADDLE_GLOBAL_SIZE": "WORLD_SIZE",
			"PADDLE_NNODES":      "GROUP_WORLD_SIZE",
		}
	case job.ProfileJAX:
		return map[string]string{
			"JAX_PROCESS_ID": "RANK", "JAX_NUM_PROCESSES": "WORLD_SIZE", "OMPI_COMM_WORLD_RANK": "RANK",
			"OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
		}
	case job.ProfileTensorFlow: // TF_CONFIG alone holds all
	}
	return nil
}

// setProfile tells a worker of the others in the variables of EnvRules.Profile, once it is known where they listen.
func (p *Plan) setProfile(vars map[string]job.Var, r rendezvous.Round, localRank int) error {
	profile, places := p.Job.Env.Profile, p.places
	if profile == "" || places == nil {
		return nil
	}
	rank, flag := r.BaseRank+localRank, "--env-profile "+string(profile)
	own := func(name, value string) {
		vars[name] = job.Var{Name: name, Value: value, Source: job.Source{Kind: job.FromMuster, Name: flag}, Own: true}
	}
	orSet := func(name, value string) {
		if _, ok := vars[name]; !ok {
			own(name, value)
		}
	}
	for name, like := range p.ProfileLike() {
		own(name, vars[like].Value)
	}
	devices := numbers(p.deviceNumbers(localRank))
	switch profile {
	case job.ProfilePaddle:
		// Paddle would have rank 0 serve its own store there, where muster's listens.
		delete(vars, "MASTER_ADDR")
		delete(vars, "MASTER_PORT")
		own("PADDLE_MASTER", places.Coordinator)
		own("PADDLE_TRAINER_ENDPOINTS", places.all())
		own("PADDLE_CURRENT_ENDPOINT", places.of(rank))
		own("PADDLE_LOCAL_RANK", strconv.Itoa(localRank))
		own("PADDLE_RANK_IN_NODE", strconv.Itoa(localRank))
		own("PADDLE_LOCAL_SIZE", strconv.Itoa(p.Procs))
		if p.accelerators == 0 && devices == "" {
			orSet("PADDLE_DISTRI_BACKEND", "gloo")
		}
		if devices != "" {
			orSet("FLAGS_selected_gpus", devices)
			orSet("FLAGS_selected_xpus", devices)
		}
	case job.ProfileJAX:
		own("JAX_COORDINATOR_ADDRESS", places.Coordinator)
		if r.GroupWorldSize == 1 {
			orSet("JAX_COORDINATOR_BIND_ADDRESS", places.Coordinator) // else it listens for the whole network
		}
		if devices != "" {
			orSet("JAX_LOCAL_DEVICE_IDS", devices)
		}
		own("OMPI_COMM_WORLD_LOCAL_RANK", strconv.Itoa(localRank))
		uri := placesLater
		if !places.future() {
			uri = "0.0;tcp://" + places.Coordinator // jax looks whether it is there; the address counts above
		}
		own("OMPI_MCA_orte_hnp_uri", uri)
	case job.ProfileTensorFlow:
		text, err := places.tensorFlow(rank)
		if err != nil {
			return err
		}
		own("TF_CONFIG", text)
	}
	for _, v := range vars {
		if profile.Tells(v.Name) && len(v.Name)+len(v.Value)+2 > maxVariable {
			return errhint.With(errhint.Usagef("cannot use %s with %d workers: %s would have %d bytes, and Linux passes %d to a program",
				flag, r.WorldSize, v.Name, len(v.Value), maxVariable), "start fewer workers on each node, which use several devices each")
		}
	}
	return nil
}

// all are the places of all workers with commas between.
func (l *Places) all() string {
	if l.future() {
		return placesLater
	}
	return strings.Join(l.Workers, ",")
}

func (l *Places) of(rank int) string {
	if l.future() {
		return placesLater
	}
	return l.Workers[rank]
}

// tensorFlow is the worker's TF_CONFIG.
func (l *Places) tensorFlow(rank int) (string, error) {
	if l.future() {
		return placesLater, nil
	}
	type task struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	}
	text, err := json.Marshal(struct {
		Cluster map[string][]string `json:"cluster"`
		Task    task                `json:"task"`
	}{map[string][]string{"worker": l.Workers}, task{"worker", rank}})
	return string(text), err
}

// Check refuses places that the framework of EnvRules.Profile cannot take.
func (p *Plan) Check(l *Places) error {
	if p.Job.Env.Profile != job.ProfilePaddle {
		return nil
	}
	for rank, place := range l.Workers {
		if host, _, err := net.SplitHostPort(place); err == nil && strings.Contains(host, ":") {
			return errhint.With(errhint.Usagef(
				"cannot use --env-profile paddle: rank %d is to listen at %s, and Paddle reads no IPv6 address",
				rank, place), "choose another address of its node by --local-addr or --iface")
		}
	}
	return nil
}

// deviceNumbers are the accelerators that are for a worker, among those that it sees; none where the node has none.
func (p *Plan) deviceNumbers(localRank int) []int {
	seen := p.accelerators
	switch {
	case p.OwnDevices():
		return upTo(0, max(1, listed(p.devices.Own[localRank])))
	case seen <= 0:
		return nil
	case p.Job.VirtualLocalRank:
		return []int{0}
	case seen < p.Procs:
		return []int{localRank % seen}
	}
	share := seen / p.Procs
	return upTo(localRank*share, share)
}

// listed is how many devices a variable lists.
func listed(vars []job.Var) int {
	for _, v := range vars {
		if strings.HasSuffix(v.Name, "_VISIBLE_DEVICES") && v.Value != "" {
			return strings.Count(v.Value, ",") + 1
		}
	}
	return 0
}

func upTo(first, n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = first + i
	}
	return list
}

func numbers(list []int) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, ",")
}
