package devicecheck

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"muster/internal/printable"
)

// order is a command, one line of JSON.
type order struct {
	ID int    `json:"id"`
	Do string `json:"do"` // local, serve, pair, dlrover, links; abandon, which is not answered and may come at any time
	// LimitMS is after how long the program gives itself up and says where it is; WaitMS, less than that, is how long
	// it waits for other devices. For links the limit is that of each pair.
	LimitMS int64 `json:"limit_ms"`
	WaitMS  int64 `json:"wait_ms"`
	// Group, for pair and dlrover, is who sums; local without it sums nothing.
	Group *orderGroup `json:"group,omitempty"`
	// Sizes are what is summed, in bytes; each takes about Seconds, all of them TotalSeconds, after which the rest is
	// left out.
	Sizes        []int64 `json:"sizes,omitempty"`
	Seconds      float64 `json:"seconds"` // for links: of a sample, at least; for local: of each measure
	TotalSeconds float64 `json:"total_seconds,omitempty"`
	// Why, for abandon, is what those in the group are told.
	Why string `json:"why,omitempty"`
	// Pairs, for links, are the devices to test.
	Pairs []Pair `json:"pairs,omitempty"`
}

type orderGroup struct {
	Name     string `json:"name"`
	Store    string `json:"store"`
	Rank     int    `json:"rank"`
	World    int    `json:"world"`
	Loopback bool   `json:"loopback,omitempty"` // all are on this node
}

// answer is a line of the program. Event tells which fields it has.
type answer struct {
	ID    int    `json:"id"` // of the order, 0 before the first
	Event string `json:"event"`

	hello // hello: torch was imported

	Step string `json:"step"` // step: what comes next

	Result json.RawMessage `json:"result"` // done

	Kind  string `json:"kind"`  // failed: the cause,
	Error string `json:"error"` // and in words; in link too, where it may be empty
	Spent bool   `json:"spent"` // the process is not to be used again

	Pair Pair         `json:"pair"` // pair, before it is tested, and link, after it
	Ways []linkAnswer `json:"ways"` // link: from the first to the second, and back
}

// hello is what the program found.
type hello struct {
	Torch    string  `json:"torch"`
	Device   string  `json:"device"`
	Backend  string  `json:"backend"`
	Model    string  `json:"model"`
	ImportMS float64 `json:"import_ms"`
}

type linkAnswer struct {
	MBps     float64 `json:"mbps"`
	Wrong    int     `json:"wrong"`
	Peer     *bool   `json:"peer"`
	HostMBps float64 `json:"host_mbps"`
}

// localAnswer, serveAnswer and pairAnswer are results.
type localAnswer struct {
	Matmul struct {
		N        int     `json:"n"`
		DType    string  `json:"dtype"`
		Count    int     `json:"count"`
		BestMS   float64 `json:"best_ms"`
		MedianMS float64 `json:"median_ms"`
	} `json:"matmul"`
	ToDevice   float64    `json:"h2d"`
	FromDevice float64    `json:"d2h"`
	AllReduce  *rowAnswer `json:"allreduce"`
}

type serveAnswer struct {
	Port int `json:"port"`
}

type pairAnswer struct {
	Rows []rowAnswer `json:"rows"`
}

type dlroverAnswer struct {
	Took float64 `json:"took"`
}

type rowAnswer struct {
	Bytes  int64   `json:"bytes"`
	MS     float64 `json:"ms"`
	BestMS float64 `json:"best_ms"`
}

// maxLine is how long an answer may be, in bytes. The longest, of a comm-perf table, has some thousand.
const maxLine = 1 << 20

// errGarbled is what readAnswer returns for a line that is no answer.
var errGarbled = errors.New("it said what is no answer")

// readAnswer reads one line. Other errors than errGarbled are those of r; io.EOF says that no line was begun.
func readAnswer(r *bufio.Reader) (answer, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return answer{}, fmt.Errorf("%w: a line of more than %d bytes, which begins with %s", errGarbled, maxLine, quote(line))
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0:
			return answer{}, io.ErrUnexpectedEOF
		case err != nil:
			return answer{}, err
		}
		break
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, fmt.Errorf("%w: %s", errGarbled, quote(line))
	}
	return a, nil
}

// quote quotes the beginning of what a process said.
func quote(line []byte) string {
	const shown = 80 // bytes
	text := strings.TrimSpace(string(line[:min(shown, len(line))]))
	return strconv.Quote(text)
}

// said is what a process printed or answered, fit to be shown.
func said(text string) string {
	const longest = 300 // bytes
	return printable.Line(text, longest)
}
