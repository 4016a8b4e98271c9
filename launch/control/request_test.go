package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestStopping: what follows of a stop depends on whether there is grace, and whether it was asked for before.
func TestStopping(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"workers have 30s":             Stopping(false, false, 30*time.Second),
		"already: its workers have 5s": Stopping(false, true, 5*time.Second),
		"without grace":                Stopping(true, true, time.Second),
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}

// TestRequestLogged: a process of another PID namespace, which has the number 0 here, is not named by it.
func TestRequestLogged(t *testing.T) {
	t.Parallel()
	for pid, want := range map[int]string{0: `"from":"a process outside of this container"`, 7: `"pid":7`} {
		var said strings.Builder
		log := zerolog.New(&said)
		r := Request{What: ScaleRequested, By: Peer{PID: pid}, Wanted: Wanted{Nodes: 1}}
		if r.Log(&log); !strings.Contains(said.String(), want) || !strings.Contains(said.String(), "asked to scale the job to 1 node\"") {
			t.Errorf("process %d: %s", pid, said.String())
		}
	}
}

// TestRefusalLogged: the log says of a request that was asked for that it is not done, and why.
func TestRefusalLogged(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	log := zerolog.New(&said)
	r := Request{What: KillRequested, By: Peer{UID: 7, PID: 8}, Wanted: Wanted{Node: "node-9"}}
	r.LogRefusal(&log, errors.New("no node \n is there"))
	for _, want := range []string{`"level":"warn"`, `"error":"no node \\n is there"`, `"refused to rehearse the loss of node-9"`} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%s lacks %s", said.String(), want)
		}
	}
}

// TestRequestEvents: an event says which node is to be lost and how many are wanted, and of a refusal why.
func TestRequestEvents(t *testing.T) {
	t.Parallel()
	by := Peer{UID: 7, PID: 8}
	kill := Request{What: KillRequested, By: by, Wanted: Wanted{Node: "node-9"}}
	scale := Request{What: ScaleRequested, By: by, Wanted: Wanted{Nodes: 5}}
	for want, got := range map[string]Event{
		"KillRequested node-9 ":                                   kill.Event(),
		"ScaleRequested  5 nodes":                                 scale.Event(),
		"RequestRefused  rehearse the loss of node-9: no":         kill.Refusal(errors.New("no")),
		"RequestRefused  scale the job to 5 nodes: it is \\nover": scale.Refusal(errors.New("it is \nover")),
	} {
		if text := fmt.Sprint(got.Type, " ", got.Subject, " ", got.Message); text != want || got.By == nil || *got.By != by {
			t.Errorf("%q by %v, want %q", text, got.By, want)
		}
	}
}

// TestRequestPaths: each request has a path of its own, and is called in words of its own.
func TestRequestPaths(t *testing.T) {
	t.Parallel()
	words := map[string]bool{}
	for what, path := range requestPaths {
		if got, ok := requestAt(path); !ok || got != what {
			t.Errorf("%s: %s is %s", what, path, got)
		}
		r := Request{What: what}
		words[r.String()] = true
		if strings.Contains(r.Verb(), "error") {
			t.Errorf("%s has no verb", what)
		}
	}
	if _, ok := requestAt(pathStatus); ok || len(words) != len(requestPaths) {
		t.Errorf("%v", words)
	}
}
