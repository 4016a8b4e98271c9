package logtext

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// mergeWindow is how long a line waits for other nodes that say the same.
const mergeWindow = 500 * time.Millisecond

// Merger takes the lines of several nodes, each with its node's name as NodeKey, and shows as text once what several of
// them say within half a second, with the names of all. Errors do not wait: the first node's is shown at once, and the
// others that say it follow together. Other lines keep their order. Safe for concurrent use, with whoever else writes
// to Out as far as Out is. Call Flush in the end.
type Merger struct {
	out   *Writer
	nodes int

	mu   sync.Mutex
	held []*held // in the order in which they came
}

// held is a line that waits for other nodes.
type held struct {
	entry
	key    string
	shown  []string // nodes of which it was shown already
	timer  *time.Timer
	wanted int  // nodes with which it is complete
	due    bool // it waits for nobody any more
}

// NewMerger returns a merger for a job of this many nodes, which writes to out.
func NewMerger(out *Writer, nodes int) *Merger { return &Merger{out: out, nodes: nodes} }

// Write takes one line.
func (m *Merger) Write(p []byte) (int, error) {
	e, ok := parse(p)
	if !ok || len(e.nodes) == 0 || m.nodes < 2 {
		return m.out.Write(p)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	node, key := e.nodes[0], e.sameKey()
	urgent := e.level == "error" || e.level == "fatal"
	i := slices.IndexFunc(m.held, func(h *held) bool { return !h.due && h.key == key })
	if i >= 0 && (slices.Contains(m.held[i].nodes, node) || slices.Contains(m.held[i].shown, node)) { // it says it again
		m.flushLocked(i + 1)
		i = -1
	}
	if i >= 0 {
		h := m.held[i]
		h.join(&e)
		h.due = len(h.nodes) == h.wanted
		m.drainLocked()
		return len(p), nil
	}
	if last := m.lastOf(node); urgent && last >= 0 { // what the node has said before comes first
		m.flushLocked(last + 1)
	}
	h := &held{entry: e, key: key, wanted: m.nodes}
	if urgent {
		m.showLocked(h)
		h.nodes, h.shown, h.wanted = nil, []string{node}, m.nodes-1
	}
	h.timer = time.AfterFunc(mergeWindow, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		h.due = true
		m.drainLocked()
	})
	m.held = append(m.held, h)
	return len(p), nil
}

// Flush shows what waits.
func (m *Merger) Flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.flushLocked(len(m.held))
}

// lastOf is the last line that waits and that a node has said; -1 where there is none.
func (m *Merger) lastOf(node string) int {
	last := -1
	for i, h := range m.held {
		if slices.Contains(h.nodes, node) {
			last = i
		}
	}
	return last
}

// drainLocked shows the lines that are due, up to the first that is not.
func (m *Merger) drainLocked() {
	n := slices.IndexFunc(m.held, func(h *held) bool { return !h.due })
	if n < 0 {
		n = len(m.held)
	}
	m.flushLocked(n)
}

// flushLocked shows the first n lines that wait, and forgets them.
func (m *Merger) flushLocked(n int) {
	for _, h := range m.held[:n] {
		m.showLocked(h)
	}
	m.held = slices.Delete(m.held, 0, n)
}

func (m *Merger) showLocked(h *held) {
	if h.timer != nil {
		h.timer.Stop()
	}
	if len(h.nodes) == 0 {
		return
	}
	slices.SortFunc(h.nodes, byNumber)
	_ = m.out.show(&h.entry) // nobody could be told
}

// join adds a node to those that say the line. Of the fields those stay that are the same.
func (h *held) join(e *entry) {
	if len(h.nodes) == 0 { // the first is shown, and the second takes its place
		h.fields, h.message = e.fields, e.message
	} else {
		h.fields = slices.DeleteFunc(slices.Clone(h.fields), func(f field) bool {
			return !slices.ContainsFunc(e.fields, func(g field) bool { return f.key == g.key && raw(f.value) == raw(g.value) })
		})
		h.message = anonymous(h.message, h.nodes[0])
	}
	h.nodes = append(h.nodes, e.nodes...)
}

// sameKey is the same for lines that say the same of different nodes: durations, places in the job and process ids may
// differ, and so may a node's own name, and why a check was passed.
func (e *entry) sameKey() string {
	var b strings.Builder
	b.WriteString(e.level + "\x00" + anonymous(e.message, e.nodes[0]))
	passed := slices.ContainsFunc(e.fields, func(f field) bool { return f.key == "status" && f.value == "PASS" })
	for _, f := range e.fields {
		if f.key == "group_rank" || f.key == "pid" || strings.HasSuffix(f.key, "_ms") || f.key == "reason" && passed {
			continue
		}
		b.WriteString("\x00" + f.key + "\x00" + raw(f.value))
	}
	return b.String()
}

// anonymous is a message of several nodes, in which each names itself.
func anonymous(message, node string) string {
	return strings.ReplaceAll(message, "node "+strconv.Quote(node), "node of its name")
}

func raw(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value) // cannot be: it was read from JSON
	}
	return string(text)
}

// byNumber orders node-2 before node-10.
func byNumber(a, b string) int {
	x, m := number(a)
	y, n := number(b)
	if x == y && m >= 0 && n >= 0 {
		return cmp.Compare(m, n)
	}
	return strings.Compare(a, b)
}

// number cuts a name in front of the digits at its end; -1 where there are none.
func number(name string) (string, int) {
	head := strings.TrimRight(name, "0123456789")
	n, err := strconv.Atoi(name[len(head):])
	if err != nil {
		return name, -1
	}
	return head, n
}
