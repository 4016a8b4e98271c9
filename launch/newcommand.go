package launch

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/job"
	"muster/launch/plan"
	"muster/rendezvous"
)

// commandKey is where a new command stands on the board of a round, answerKey where a node says whether it can run it.
// Commands are tried one after the other.
func commandKey(n int) string { return "control/command/" + strconv.Itoa(n) }

func answerKey(n, groupRank int) string { return commandKey(n) + "/" + strconv.Itoa(groupRank) }

// commandNote is a command that is tried, commandAnswer what a node says of it.
type (
	commandNote struct {
		ID    string   `json:"id"`
		Words []string `json:"words"`
	}
	commandAnswer struct {
		ID    string `json:"id"`
		Node  string `json:"node"`
		Error string `json:"error,omitempty"`
		Hint  string `json:"hint,omitempty"`
	}
)

// commandRound is what the nodes of a paused round tell each other of new commands.
type commandRound struct {
	tried  atomic.Int32 // that this node has seen
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (c *commandRound) end() {
	c.cancel()
	c.wg.Wait()
}

// commandTime bounds the waiting for what the nodes say of a new command.
const commandTime = 2 * time.Second

// answerCommands begins to say of each command that another node tries whether it can be run here.
func (a *Agent) answerCommands(ctx context.Context) *commandRound {
	c := &commandRound{}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	b, rank := a.meeting.Board(), a.meeting.GroupRank
	if b == nil {
		return c
	}
	c.wg.Go(func() {
		for ctx.Err() == nil {
			n := int(c.tried.Load())
			var asked commandNote
			text, err := b.Get(ctx, commandKey(n))
			if err == nil {
				err = json.Unmarshal(text, &asked)
			}
			if err == nil {
				answer := commandAnswer{ID: asked.ID, Node: a.Plan.Hostname}
				if _, refused := a.Plan.Replacement(asked.Words); refused != nil {
					answer.Error, answer.Hint = refused.Error(), errhint.Of(refused)
				}
				if text, err = json.Marshal(answer); err == nil {
					err = note(ctx, b, answerKey(n, rank), text)
				}
				c.tried.Add(1)
			}
			if err != nil {
				select { // the store may be out of reach for a moment
				case <-ctx.Done():
				case <-time.After(publishEvery):
				}
			}
		}
	})
	return c
}

// tryCommand asks all nodes whether they can run a command, and returns it as a rendezvous.Orders has it.
func (a *Agent) tryCommand(ctx context.Context, c *commandRound, words []string) (string, error) {
	text, err := json.Marshal(words)
	if err != nil {
		return "", err
	}
	if len(text) > rendezvous.MaxCommand {
		return "", errhint.Usagef("cannot resume with this command: it has %d bytes as JSON, and %d are the most", len(text),
			rendezvous.MaxCommand)
	}
	refused := func(node, why, hint string) error {
		return errhint.Code(errhint.With(fmt.Errorf("the job stays paused: node %s cannot run the new command: %s", node, why), hint),
			errhint.Usage)
	}
	if _, err := a.Plan.Replacement(words); err != nil {
		return "", refused(a.Plan.Hostname, err.Error(), errhint.Of(err))
	}
	b, n, id := a.meeting.Board(), int(c.tried.Load()), rand.Text()
	if b == nil {
		return string(text), nil
	}
	asked, err := json.Marshal(commandNote{id, words})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	answers := make([]commandAnswer, a.meeting.GroupWorldSize)
	err = note(ctx, b, commandKey(n), asked)
	if err == nil {
		forEach(len(answers), func(i int) {
			if text, err := b.Get(ctx, answerKey(n, i)); err == nil {
				_ = json.Unmarshal(text, &answers[i]) // then it has no id
			}
		})
	}
	for _, said := range answers {
		if said.ID == id && said.Error != "" {
			return "", refused(printable.Output(said.Node), printable.Output(said.Error), printable.Output(said.Hint))
		}
	}
	if i := slices.IndexFunc(answers, func(said commandAnswer) bool { return said.ID != id }); i >= 0 {
		return "",
			errhint.Code(fmt.Errorf("the job stays paused: the node with group rank %d does not say whether it can run the new command",
				i),
				errhint.TryAgain)
	}
	return string(text), nil
}

// forEach calls f for the numbers below n, some at a time.
func forEach(n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(atOnce, n) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// replace has workers that are started from now on run another command.
func (a *Agent) replace(ctx context.Context, r *plan.Replacement, command string) error {
	err := a.warm.Close()
	a.warm = nil
	a.Plan.Use(r)
	a.command = command
	a.status.Renamed(a.Plan.Title())
	a.Log.Info().Strs("command", job.ShownArgsBut(a.Plan.CommandOf(0), a.Plan.Job.Vars())).Msg("workers run another command from now on")
	if err != nil {
		return err
	}
	return a.openWarm(ctx)
}
