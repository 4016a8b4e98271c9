package membership

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// KeyPrefix begins every key of ours. Servers keep them apart from those of the workers.
const KeyPrefix = "muster/"

// keys makes the keys of one job.
type keys struct{ prefix string }

func newKeys(runID string) keys { return keys{KeyPrefix + escapeID(runID) + "/"} }

// escapeID makes a path element of a run id, which may be anything.
func escapeID(id string) string {
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(id)
}

// mandate is the leadership of one coordinator: a term, and the nonce that it made. Another agent that claims the same
// term, in this job or in an earlier one of the same name, has another.
type mandate struct {
	term  int
	nonce string
}

// roundID is a round of one incarnation of the job: its number, and the nonce that its coordinator made.
type roundID struct {
	number int
	nonce  string
}

func (k keys) job(name string) string    { return k.prefix + name }
func (k keys) beat(agent string) string  { return k.prefix + "beat/" + agent }
func (k keys) left(agent string) string  { return k.prefix + "left/" + agent }
func (k keys) coordinator(t int) string  { return fmt.Sprintf("%st%d/coordinator", k.prefix, t) }
func (k keys) elsewhere(j string) string { return k.prefix + "elsewhere/" + j }

func (k keys) term(m mandate, name string) string {
	return fmt.Sprintf("%st%d.%s/%s", k.prefix, m.term, m.nonce, name)
}

func (k keys) join(m mandate, ticket int64) string {
	return k.term(m, "join/"+strconv.FormatInt(ticket, 10))
}

// answer is the key of the n-th answer to a ticket, from 1.
func (k keys) answer(m mandate, ticket int64, n int) string {
	return k.term(m, fmt.Sprintf("answer/%d/%d", ticket, n))
}

// door is a key of the examination with nonce n.
func (k keys) door(m mandate, n, name string) string { return k.term(m, "door/"+n+"/"+name) }

func (k keys) round(r roundID, name string) string {
	return fmt.Sprintf("%s%d.%s/%s", k.prefix, r.number, r.nonce, name)
}

// agentKey is the key under which the agent with a rank among the agents in a round says something.
func (k keys) agentKey(r roundID, name string, agentRank int) string {
	return k.round(r, name+"/"+strconv.Itoa(agentRank))
}

// move is a key of the election of a host for the store, in the job with nonce j.
func (k keys) move(t int, j, name string) string {
	return fmt.Sprintf("%smove/%d.%s/%s", k.prefix, t, j, name)
}

func joinHostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// both returns a context that ends with either, with the cause of whichever was first.
func both(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
}
