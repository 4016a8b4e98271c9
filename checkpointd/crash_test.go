package checkpointd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/python"
	"muster/internal/testutil"
)

// talker is a child process that answers lines with lines.
type talker struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan []string
}

func talk(t *testing.T, cmd *exec.Cmd) *talker {
	t.Helper()
	stdin, stdout := testutil.StartPiped(t, cmd)
	p := &talker{t: t, cmd: cmd, stdin: stdin, lines: make(chan []string, 10_000)}
	go func() {
		defer close(p.lines)
		scanner := bufio.NewScanner(stdout)
		for scanner.Scan() {
			p.lines <- strings.Fields(scanner.Text())
		}
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *talker) say(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// hear returns the next line that begins with word, and those before it.
func (p *talker) hear(word string) (line []string, before [][]string) {
	p.t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("it ended before it said %q; it said %v", word, before)
			}
			if len(line) > 0 && line[0] == word {
				return line, before
			}
			before = append(before, line)
		case <-limit:
			p.t.Fatalf("it did not say %q; it said %v", word, before)
		}
	}
}

func (p *talker) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// TestCrashes kills workers and agents at random moments, 30 times (1,000 with MUSTER_SOAK=1). Whatever was saved by
// both ranks is restored, by both from the same place and bit for bit; after the death of the agent, too, by what it
// has left in memory, which either the next agent takes over or is brought to disk before. In the end every committed
// step is loaded without muster, and nothing is left in memory.
func TestCrashes(t *testing.T) {
	interpreter, kills := testutil.Torch(t), 30
	if testutil.Soak() {
		kills = 1000
	}
	packages, dir, socket := t.TempDir(), filepath.Join(t.TempDir(), "checkpoints"), filepath.Join(t.TempDir(), "socket")
	if err := python.InstallCheckpoint(packages); err != nil {
		t.Fatal(err)
	}
	memory := shm(t)
	cmd := exec.CommandContext(t.Context(), interpreter, filepath.Join("testdata", "crash.py"), dir)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "MUSTER_SOCKET="+socket)
	workers := talk(t, cmd)
	serve := func() *talker {
		_ = os.Remove(socket)
		agent := talk(t, exec.CommandContext(t.Context(), "/proc/self/exe", serveWord, socket, "crashes", memory))
		agent.hear("serving")
		return agent
	}
	agent := serve()
	random := rand.New(rand.NewPCG(8, 2026))
	least, agents, adopted, fromMemories, last := -1, 0, 0, 0, -1 // least: what must not be lost
	adopting := false
	for life := range kills {
		workers.say("start " + strconv.Itoa(life))
		line, heard := workers.hear("pids")
		var pids []int
		for _, word := range line[1:] {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
		time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond) // the moment of the crash is what is random
		agentDies := random.IntN(8) == 0 && life < kills-1             // in the end somebody has to look after what is left
		if agentDies {
			agents++
			agent.kill()
		}
		victim := random.IntN(2)
		for _, i := range []int{victim, 1 - victim} { // an agent stops the other one, too
			_ = syscall.Kill(pids[i], syscall.SIGKILL)
		}
		workers.say("reap")
		_, more := workers.hear("reaped")
		loaded, saved := map[string]string{}, map[int]int{}
		sets := map[string][]int{} // by rank: the steps that it has saved
		for _, words := range append(heard, more...) {
			switch words[0] {
			case "loaded":
				loaded[words[1]] = words[2] + " from " + words[3]
				if n, _ := strconv.Atoi(words[2]); n < least {
					t.Fatalf("life %d: rank %s restored step %d from %s, and %d was kept", life, words[1], n, words[3], least)
				}
				if words[3] == fromMemory {
					fromMemories++
					if adopting {
						adopted++
					}
				}
			case "saved":
				n, _ := strconv.Atoi(words[2])
				sets[words[1]] = append(sets[words[1]], n)
				if saved[n]++; saved[n] == 2 && !agentDies {
					least = max(least, n)
				}
			case "skipped":
			case "failed":
				if !agentDies {
					t.Fatalf("life %d: %v", life, words)
				}
			default:
				t.Fatalf("life %d: %v", life, words)
			}
		}
		if len(loaded) == 2 && loaded["0"] != loaded["1"] {
			t.Fatalf("life %d: rank 0 restored step %s, rank 1 step %s", life, loaded["0"], loaded["1"])
		}
		last, adopting = max(last, least), false
		if agentDies {
			// A rank does not wait until the agent knows of its copy; but when it has begun another one the agent does.
			if a, b := sets["0"], sets["1"]; len(a) > 1 && len(b) > 1 {
				if sure := min(a[len(a)-2], b[len(b)-2]); saved[sure] == 2 {
					least = max(least, sure)
				}
			}
			if adopting = random.IntN(2) == 0; !adopting {
				for _, label := range labelPaths(memory) {
					if err := Salvage(t.Context(), label, "", zerolog.New(zerolog.NewTestWriter(t))); err != nil {
						t.Fatalf("life %d: %v", life, err)
					}
				}
				if found, _ := chooseDisk(context.Background(), dir); least >= 0 && (found == nil || int(found.Step) < least) ||
					len(inMemory(t, memory)) > 0 {
					t.Fatalf("life %d: on disk is %+v, and %d was kept; in memory %v", life, found, least, inMemory(t, memory))
				}
			}
			agent = serve()
			continue
		}
		agent.say("round")
		agent.hear("done")
	}
	agent.say("drain")
	agent.hear("done")
	_ = agent.stdin.Close()
	for range agent.lines {
	}
	if left := inMemory(t, memory); len(left) > 0 {
		t.Errorf("left in memory: %v", left)
	}
	steps, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for i, s := range steps {
		if err := s.Verify(); err != nil {
			t.Errorf("step %d: %v", s.Step, err)
		}
		if i%max(1, len(steps)/20) != 0 {
			continue
		}
		for _, f := range s.Files {
			checked++
			workers.say(fmt.Sprintf("check %s %d %d", f.at(dir), f.Shard, s.Step))
			if line, _ := workers.hear("checked"); len(line) != 2 || line[1] != "equal" {
				t.Errorf("%s: %v", f.Path, line)
			}
		}
	}
	if len(steps) == 0 || fromMemories == 0 || int(steps[0].Step) < least {
		t.Errorf("%d steps are committed, %d lives restored from memory, the newest is %+v and %d was kept", len(steps), fromMemories,
			steps, least)
	}
	t.Logf("%d kills, %d of them of the agent too, after which %d ranks restored what it had in memory; %d of %d restores from memory; "+
		"the last step was %d; %d steps committed, %d files loaded",
		kills, agents, adopted, fromMemories, 2*kills, last, len(steps), checked)
}
