package tcpstore_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/rendezvous"
	"muster/rendezvous/storetest"
	"muster/rendezvous/tcpstore"
)

// torch is a Python process with PyTorch that serves and uses TCPStores for a test; see testdata/torchstore.py.
type torch struct {
	t    *testing.T
	in   *json.Encoder
	outs *json.Decoder
}

func startTorch(t *testing.T, python string) *torch {
	t.Helper()
	args := []string{python, "testdata/torchstore.py"}
	if os.Geteuid() == 0 {
		// PyTorch's server looks up the name of every client, which takes long where name servers are slow or away. A
		// mount namespace keeps it from asking any.
		conf := filepath.Join(t.TempDir(), "nsswitch.conf")
		if err := os.WriteFile(conf, []byte("hosts: files\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		script := `mount --bind "$0" /etc/nsswitch.conf && exec "$@"`
		args = append([]string{"unshare", "-m", "sh", "-c", script, conf}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "TORCH_CPP_LOG_LEVEL=ERROR")
	in, out := testutil.StartPiped(t, cmd)
	t.Cleanup(func() {
		in.Close()
		late := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		defer late.Stop()
		io.Copy(io.Discard, out)
		cmd.Wait() // how Python ends proves nothing
	})
	return &torch{t, json.NewEncoder(in), json.NewDecoder(bufio.NewReader(out))}
}

// ask sends a request and decodes the answer.
func (p *torch) ask(t *testing.T, request, answer any) {
	t.Helper()
	if err := p.in.Encode(request); err != nil {
		t.Fatal(err)
	}
	if err := p.outs.Decode(answer); err != nil {
		t.Fatal("PyTorch's process gives no answer: ", err)
	}
}

// serve starts a server of PyTorch's and returns its port.
func (p *torch) serve(t *testing.T, backend string) int {
	t.Helper()
	var answer struct{ Port int }
	p.ask(t, map[string]any{"do": "serve", "backend": backend}, &answer)
	return answer.Port
}

// step is [client, operation, argument...].
type step []any

// run performs steps with PyTorch's client.
func (p *torch) run(t *testing.T, port int, steps []step) []any {
	t.Helper()
	var answer struct{ Results []any }
	p.ask(t, map[string]any{"do": "run", "port": port, "steps": steps}, &answer)
	if len(answer.Results) != len(steps) {
		t.Fatalf("%d results of %d steps", len(answer.Results), len(steps))
	}
	return answer.Results
}

// same runs steps with PyTorch's client against a fresh server of ours and one of PyTorch's and wants equal results.
func (p *torch) same(t *testing.T, backend string, steps []step) {
	t.Helper()
	theirs := p.run(t, p.serve(t, backend), steps)
	ours := p.run(t, listen(t, tcpstore.ServerConfig{Hosts: []string{"127.0.0.1"}}).Port(), steps)
	for i, s := range steps {
		if !cmp.Equal(theirs[i], ours[i]) {
			t.Errorf("step %d, %.80q: PyTorch's server gives %.80q, ours %.80q", i, s, fmt.Sprint(theirs[i]), fmt.Sprint(ours[i]))
		}
	}
}

// oldSteps is what every PyTorch since 1.9 can do.
var oldSteps = []step{
	{"a", "set", "k", "v1"},
	{"b", "get", "k"},
	{"a", "set", "k", ""},
	{"b", "get", "k"},
	{"a", "set", "bytes/\n", "\x00\x01ÿ"},
	{"b", "get", "bytes/\n"},
	{"a", "set", "big", string(make([]byte, 300_000))},
	{"b", "get", "big"},
	{"a", "add", "n", 5},
	{"b", "add", "n", -7},
	{"b", "get", "n"},
	{"a", "add", "n", 1 << 40},
	{"a", "set", "n", " 12abc"},
	{"a", "add", "n", 1},
	{"a", "get", "n"},
	{"a", "set", "n", "-5"},
	{"a", "add", "n", 0},
	{"a", "compare_set", "cs", "", "first"},
	{"b", "compare_set", "cs", "other", "x"},
	{"b", "compare_set", "cs", "", "x"},
	{"b", "compare_set", "cs", "first", "second"},
	{"b", "compare_set", "missing", "exp", "x"},
	{"a", "set", "empty", ""},
	{"a", "compare_set", "empty", "", "filled"},
	{"a", "get", "empty"},
	{"a", "num_keys"},
	{"a", "delete_key", "k"},
	{"a", "delete_key", "k"},
	{"a", "num_keys"},
	{"a", "wait", []string{"n", "cs"}, 5000},
	{"a", "start:wait", []string{"n", "w1", "w2"}, 20000},
	{"b", "set", "w1", "x"},
	{"b", "add", "w2", 1},
	{"a", "join"},
	{"a", "start:get", "w3"},
	{"b", "set", "w3", "woken"},
	{"a", "join"},
	{"a", "start:wait", []string{"w4", "w5"}, 20000},
	{"b", "set", "w4", "seen, and deleted again"},
	{"b", "delete_key", "w4"},
	{"b", "set", "w5", "x"},
	{"a", "join"},
	{"b", "num_keys"},
	{"c", "set", "word", "word"}, // from here on c has no connection left
	{"c", "add", "word", 1},
	{"d", "set", "word", ""},
	{"d", "add", "word", 1},
	{"b", "get", "word"},
}

// newSteps needs PyTorch 2.12 or later.
var newSteps = []step{
	{"a", "check", []string{"k"}},
	{"a", "set", "k", "v"},
	{"b", "check", []string{"k"}},
	{"b", "check", []string{"k", "missing"}},
	{"a", "append", "ap", "aa"},
	{"b", "append", "ap", "bb"},
	{"a", "get", "ap"},
	{"a", "multi_set", []string{"m1", "m2"}, []string{"1", ""}},
	{"b", "multi_get", []string{"m2", "ap", "m1"}},
	{"a", "wait", []string{"never"}, 50},
	{"a", "get", "k"}, // the connection is in step after a time-out
	{"a", "wait", []string{"k", "never"}, 50},
	{"b", "set", "never", "now"},
	{"a", "get", "never"},
	{"a", "start:wait", []string{"w1", "w2", "w3"}, 20000},
	{"b", "append", "w1", "x"},
	{"b", "multi_set", []string{"w2", "x"}, []string{"1", "2"}},
	{"b", "compare_set", "w3", "", "x"},
	{"a", "join"},
	{"a", "queue_push", "q", "e1"},
	{"a", "queue_push", "q", "e2"},
	{"b", "queue_len", "q"},
	{"b", "check", []string{"q"}},
	{"b", "num_keys"},
	{"b", "delete_key", "q"},
	{"b", "queue_pop", "q", true},
	{"b", "queue_pop", "q", false},
	{"b", "queue_len", "q"},
	{"b", "queue_pop", "q", false}, // empty: an error of the client's
	{"b", "check", []string{"q"}},
	{"a", "set", "q", "a value of the same name"},
	{"a", "queue_push", "q", ""},
	{"a", "get", "q"},
	{"b", "queue_pop", "q", true},
	{"a", "start:wait", []string{"p"}, 20000}, // queue_pop would hold Python's lock while it waits
	{"b", "queue_push", "p", "for the popper"},
	{"a", "join"},
	{"a", "queue_pop", "p", true},
	{"a", "barrier", "alone", 1, 20000}, // as queue_pop; our client's barriers meet on PyTorch's server in exerciseClient
	{"a", "barrier", "late", 2, 50},
	{"b", "barrier", "late", 2, 5000},
	{"a", "list_keys"},
	{"c", "set", "word", "word"},
	{"c", "barrier", "word", 1, 5000},
	{"c", "get", "word"}, // c has no connection left
	{"a", "get", "word"},
}

// randomSteps returns n steps of two clients, the same for the same seed. It keeps away from what PyTorch's servers do
// by accident (see TestKnownDifferences), and from calls that would wait until a time-out.
func randomSteps(seed uint64, n int, old bool) []step {
	r := rand.New(rand.NewPCG(seed, 0))
	present := make(map[string]bool)
	numbers := []string{"0", "-3", "17", " 8", "9x", "123456789012"}
	pick := func(prefix string) string { return prefix + strconv.Itoa(r.IntN(4)) }
	value := func() string {
		b := make([]byte, []int{0, 1, 5, 40, 3000, 20_000}[r.IntN(6)])
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		return string(latin1(b))
	}
	kinds := []string{"set", "get", "add", "compare_set", "wait", "num_keys", "delete_key", "set number"}
	if !old {
		kinds = append(kinds, "append", "multi_set", "multi_get", "check", "list_keys", "queue_push", "queue_pop", "queue_len")
	}
	queued := make(map[string]int)
	steps := make([]step, 0, n)
	for len(steps) < n {
		client := pick("c")[:1] + strconv.Itoa(r.IntN(2))
		word, num, queue := pick("w"), pick("n"), pick("q")
		some := word
		if r.IntN(2) == 0 {
			some = num
		}
		add := func(s ...any) { steps = append(steps, append(step{client}, s...)) }
		switch kind := kinds[r.IntN(len(kinds))]; kind {
		case "set":
			add(kind, word, value())
			present[word] = true
		case "set number":
			add("set", num, numbers[r.IntN(len(numbers))])
			present[num] = true
		case "get":
			if present[some] {
				add(kind, some)
			}
		case "add":
			add(kind, num, r.IntN(2000)-1000)
			present[num] = true
		case "compare_set":
			expected := []string{"", "x", "y"}[r.IntN(3)]
			add(kind, word, expected, []string{"", "x", "y"}[r.IntN(3)])
			present[word] = present[word] || expected == ""
		case "wait", "multi_get":
			if present[word] && present[num] {
				args := []any{kind, []string{word, num, word}}
				if kind == "wait" {
					args = append(args, 20000)
				}
				add(args...)
			}
		case "num_keys", "list_keys":
			add(kind)
		case "delete_key":
			add(kind, some)
			delete(present, some)
		case "append":
			add(kind, word, value())
			present[word] = true
		case "multi_set":
			add(kind, []string{word, num}, []string{"x", "4"})
			present[word], present[num] = true, true
		case "check":
			add(kind, []string{word, num})
		case "queue_push":
			add(kind, queue, value())
			queued[queue]++
		case "queue_pop":
			add(kind, queue, false)
			queued[queue] = max(0, queued[queue]-1)
		case "queue_len":
			add(kind, queue)
		}
	}
	return steps
}

// latin1 returns the text that the other side encodes to b.
func latin1(b []byte) []rune {
	r := make([]rune, len(b))
	for i, c := range b {
		r[i] = rune(c)
	}
	return r
}

func TestPyTorch(t *testing.T) {
	p := startTorch(t, testutil.Torch(t))
	t.Run("fixed steps", func(t *testing.T) { p.same(t, "libuv", append(oldSteps, newSteps...)) })
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("random steps ", seed), func(t *testing.T) { p.same(t, "libuv", randomSteps(seed, 400, false)) })
	}
	for _, backend := range []string{"libuv", "legacy"} {
		t.Run("contract of our client with "+backend, func(t *testing.T) { p.contract(t, backend) })
		t.Run("our client with "+backend, func(t *testing.T) {
			exerciseClient(t, fmt.Sprint("127.0.0.1:", p.serve(t, backend)), backend == "libuv")
		})
	}
}

func TestPyTorch1(t *testing.T) {
	p := startTorch(t, testutil.DebianTorch(t))
	t.Run("fixed steps", func(t *testing.T) { p.same(t, "legacy", oldSteps) })
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("random steps ", seed), func(t *testing.T) { p.same(t, "legacy", randomSteps(seed, 400, true)) })
	}
	t.Run("contract of our client", func(t *testing.T) { p.contract(t, "legacy") })
}

// contract runs the suite of rendezvous.Store with our client and PyTorch's server.
func (p *torch) contract(t *testing.T, backend string) {
	ports := make(map[*testing.T]int)
	var except []string
	if backend == "legacy" {
		except = append(except, "compare and set wakes") // it does not, there
	}
	storetest.Run(t, func(t *testing.T) rendezvous.Store {
		if ports[t] == 0 {
			ports[t] = p.serve(t, backend)
		}
		// An agent's client says more than a worker's, which PyTorch's servers must not mind.
		return dialAs(t, fmt.Sprint("127.0.0.1:", ports[t]), tcpstore.ClientConfig{Private: private})
	}, except...)
}
