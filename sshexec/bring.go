package sshexec

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed" // the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed bring.sh
var bringScript string

const (
	// answerPrefix begins a line of ours on the standard output of a machine, among what its login files may write
	// there.
	answerPrefix = "muster-bootstrap: "
	// noiseLimit bounds what they may write.
	noiseLimit = 64 << 10
	// places is how many directories bring.sh tries.
	places = 3
)

// machines are what uname -m says, by Go's names.
var machines = map[string]string{
	"386": "i686", "amd64": "x86_64", "arm64": "aarch64", "loong64": "loongarch64", "ppc64le": "ppc64le", "riscv64": "riscv64",
	"s390x": "s390x",
}

// payload is our binary, as it is sent.
type payload struct {
	path string
	sum  func() (payloadSum, error)
	zip  func() ([]byte, error)
}

type payloadSum struct {
	hash string // SHA-256, in hex
	size int64
}

func newPayload(path string) *payload {
	p := &payload{path: path}
	p.sum = sync.OnceValues(func() (payloadSum, error) {
		f, err := os.Open(path)
		if err != nil {
			return payloadSum{}, err
		}
		defer func() { _ = f.Close() }()
		h := sha256.New()
		n, err := io.Copy(h, f)
		return payloadSum{hex.EncodeToString(h.Sum(nil)), n}, err
	})
	p.zip = sync.OnceValues(func() ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		var b bytes.Buffer
		w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed) // the level is valid
		_, err = io.Copy(w, f)
		err = errors.Join(err, w.Close())
		return b.Bytes(), err
	})
	return p
}

// open returns the binary in the form that the other side takes.
func (p *payload) open(form string) (io.ReadCloser, error) {
	if form != "gzip" {
		return os.Open(p.path)
	}
	b, err := p.zip()
	return io.NopCloser(bytes.NewReader(b)), err
}

// bring sends our binary. A directory in which it cannot be put is left out in the next attempt.
func (d *Dialer) bring(ctx context.Context, l link, short string, sum payloadSum, form string) error {
	select { // those who wait may find that another machine with the same home has got it meanwhile
	case d.uploads <- struct{}{}:
		defer func() { <-d.uploads }()
	case <-ctx.Done():
		return l.fail(Failed, "", context.Cause(ctx))
	}
	began := time.Now()
	var failures []string
	for skip := 0; ; {
		c, err := d.converse(ctx, l, shellLine(bringScript, short, sum.hash, strconv.FormatInt(sum.size, 10), form, strconv.Itoa(skip)),
			form)
		if err != nil {
			return err
		}
		word, rest, _ := strings.Cut(c.answer, " ")
		stderr := oneLine(c.run.stderr.String())
		c.run.close()
		if word == "done" {
			d.log.Debug().Str("program", short).Int64("bytes", c.sent).Dur("dur_ms", time.Since(began)).Msg("program brought to a host")
			return nil
		}
		place, dir, _ := strings.Cut(rest, " ")
		if n, err := strconv.Atoi(place); word == "failed" && err == nil && n > skip && n < places {
			skip = n
			failures = append(failures, fmt.Sprintf("%s (%s)", oneLine(dir), firstOf(stderr, "what arrived was not complete")))
			continue
		}
		if word == "failed" {
			failures = append(failures, fmt.Sprintf("%s (%s)", oneLine(dir), firstOf(stderr, "what arrived was not complete")))
		} else if rest = strings.Trim(oneLine(rest), "; "); rest != "" {
			failures = append(failures, rest)
		}
		return l.fail(NoProgram, "make room there, or a directory that may hold programs: $XDG_CACHE_HOME, or ~/.cache",
			fmt.Errorf("no place for our program of %d MB: %s", (sum.size+1<<20-1)>>20, strings.Join(failures, "; ")))
	}
}

// conversation is a script that runs on a machine, and what it answered.
type conversation struct {
	run    *session
	out    *bufio.Reader
	answer string
	sent   int64
}

// converse runs a script and returns its answer. form, where it is given, is that in which our binary is sent.
func (d *Dialer) converse(ctx context.Context, l link, command string, form ...string) (_ *conversation, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	idle := time.AfterFunc(d.cfg.AnswerTimeout, func() { cancel(errNoAnswer) })
	run, err := l.run(ctx, command)
	if err != nil {
		idle.Stop()
		cancel(nil)
		return nil, err
	}
	c := &conversation{run: run}
	stop := context.AfterFunc(ctx, func() {
		// A session that hangs does not answer to its end either, and a link that is stuck does not take it.
		if _, ours := l.(*sshLink); ours {
			l.close()
		}
		run.close()
	})
	defer func() {
		if err != nil {
			run.close()
		}
		stop()
		idle.Stop()
		cancel(nil)
	}()
	nonce := rand.Text()
	sending := make(chan struct{})
	go func() { // ends with the session, which takes it or is closed
		defer close(sending)
		w := progress{run.stdin, func() { idle.Reset(d.cfg.AnswerTimeout) }, &c.sent}
		if _, err := io.WriteString(w, nonce+"\n"); err != nil || len(form) == 0 {
			return
		}
		d.send(w, form[0])
		_ = run.stdin.Close()
	}()
	c.out = bufio.NewReaderSize(run.stdout, 64<<10)
	c.answer, err = readAnswer(c.out, nonce)
	if len(form) > 0 && err == nil {
		_, _ = run.wait() // it ends after its answer, and has then said why
		run.close()       // what was not taken is not waited for
		<-sending
	}
	if err != nil {
		return nil, d.noAnswer(ctx, l, c, err)
	}
	return c, nil
}

// send writes our binary. An error is not told: the other side says what it got.
func (d *Dialer) send(w io.Writer, form string) {
	r, err := d.payload.open(form)
	if err != nil {
		return
	}
	defer func() { _ = r.Close() }()
	_, _ = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 32<<10))
}

// progress is a writer that tells of each part which was taken.
type progress struct {
	io.Writer
	moved func()
	total *int64
}

func (p progress) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	p.moved()
	*p.total += int64(n)
	return n, err
}

var (
	errNoAnswer = errors.New("no answer")
	errNoStdin  = errors.New("no standard input")
	errNoise    = fmt.Errorf("more than %d bytes before the answer", noiseLimit)
)

// noise is what a machine said in place of an answer.
type noise struct {
	error
	said string
}

func (n *noise) Unwrap() error { return n.error }

// readAnswer returns the rest of the line with the nonce, and leaves what follows it unread.
func readAnswer(r *bufio.Reader, nonce string) (string, error) {
	var text []byte
	for len(text) < noiseLimit {
		line, err := r.ReadSlice('\n')
		text = append(text, line...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return "", &noise{err, string(text)}
		}
		if _, answer, ok := strings.Cut(string(line), answerPrefix); ok {
			if rest, ok := strings.CutPrefix(answer, nonce+" "); ok {
				return strings.TrimRight(rest, "\r\n "), nil
			}
			if strings.TrimSpace(answer) == "nostdin" {
				return "", errNoStdin
			}
		}
	}
	return "", &noise{errNoise, string(text)}
}

// noAnswer explains why a machine that let us in did not run a script.
func (d *Dialer) noAnswer(ctx context.Context, l link, c *conversation, err error) error {
	if errors.Is(err, errNoStdin) {
		return l.fail(NoProgram, "the ssh program must pass its standard input on: kubectl exec does with -i",
			errors.New("it gets no standard input"))
	}
	said := ""
	if n, ok := errors.AsType[*noise](err); ok {
		said = n.said
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errNoAnswer):
		return l.fail(TimedOut, "do the login files of the user wait for something, such as a file system that is not there?",
			fmt.Errorf("it let us in, and did not answer within %v%s", d.cfg.AnswerTimeout, quoted(said, c.run.stderr.String())))
	case cause != nil:
		return l.fail(Failed, "", cause)
	case errors.Is(err, errNoise):
		return l.fail(NoProgram, "its login files should write less to the standard output of a shell without a terminal", err)
	}
	status, waitErr := c.run.wait()
	if waitErr != nil {
		return waitErr
	}
	stderr := c.run.stderr.String()
	if err := l.unreached(status, stderr, false); err != nil {
		return err
	}
	return l.fail(NoProgram, "the user's login shell there must run commands: a shell, no forced command and no menu",
		fmt.Errorf("it let us in, and ended with status %d without running /bin/sh%s", status, quoted(said, stderr)))
}

// quoted is what a machine said, for the end of an error.
func quoted(stdout, stderr string) string {
	if said := oneLine(stdout + "\n" + stderr); said != "" {
		return ": " + said
	}
	return ""
}
