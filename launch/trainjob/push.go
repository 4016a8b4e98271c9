// Package trainjob tells Kubeflow's Trainer how far a TrainJob has come, so that kubectl get trainjob shows it:
// progress and metrics by its proposal KEP-2779, pushed to the status server that the pods of a TrainJob are told of.
package trainjob

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"muster/launch/report"
)

// The variables that Trainer sets in its pods.
const (
	variableURL   = "KUBEFLOW_TRAINER_STATUS_URL"
	variableToken = "KUBEFLOW_TRAINER_STATUS_TOKEN"   // a file
	variableCA    = "KUBEFLOW_TRAINER_STATUS_CA_CERT" // a file
)

// The bounds of what is pushed, and of how often.
const (
	mostMetrics = 32
	mostFile    = 1 << 20 // bytes of a token or certificate
	mostAnswer  = 4 << 10
	every       = 15 * time.Second
	rarest      = 5 * time.Minute // where the server does not take it
	patience    = 5 * time.Second
	lastWord    = 2 * time.Second // for what is told at the end of the job
)

// Config is where a TrainJob's status goes.
type Config struct {
	URL, TokenFile, CAFile string
	Log                    zerolog.Logger
	every                  time.Duration // 0: every
}

// FromEnviron finds the status server in an environment; false where there is none, such as outside of a TrainJob.
func FromEnviron(environ []string, log zerolog.Logger) (Config, bool) {
	c := Config{Log: log}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case variableURL:
			c.URL = value
		case variableToken:
			c.TokenFile = value
		case variableCA:
			c.CAFile = value
		}
	}
	return c, c.URL != ""
}

// message is the body of a push.
type message struct {
	TrainerStatus status `json:"trainerStatus"`
}

type status struct {
	ProgressPercentage        *int32    `json:"progressPercentage,omitempty"`
	EstimatedRemainingSeconds *int32    `json:"estimatedRemainingSeconds,omitempty"`
	Metrics                   []metric  `json:"metrics,omitempty"`
	LastUpdatedTime           time.Time `json:"lastUpdatedTime"`
}

type metric struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// statusOf is what is pushed of a job: the steps of the first rank that tells some.
func statusOf(d *report.Status, now time.Time) status {
	s := status{LastUpdatedTime: now.UTC().Truncate(time.Second)}
	add := func(name, value string) {
		if name != "" && len(s.Metrics) < mostMetrics {
			s.Metrics = append(s.Metrics, metric{name, value})
		}
	}
	for i := range d.Ranks {
		p := d.Ranks[i].Progress
		if p == nil {
			continue
		}
		add("step", strconv.FormatInt(p.Step, 10))
		if p.Total > 0 {
			add("total_steps", strconv.FormatInt(p.Total, 10))
			done := min(max(float64(p.Step)/float64(p.Total), 0), 1)
			s.ProgressPercentage = new(int32(100 * done))
			if p.StepSeconds != nil {
				left := float64(max(p.Total-max(p.Step, 0), 0)) * *p.StepSeconds
				s.EstimatedRemainingSeconds = new(int32(min(max(left, 0), math.MaxInt32)))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(p.Values)) {
			add(name, strconv.FormatFloat(p.Values[name], 'g', -1, 64))
		}
		break
	}
	if d.Phase == report.PhaseSucceeded {
		s.ProgressPercentage, s.EstimatedRemainingSeconds = new(int32(100)), new(int32(0))
	}
	add("world_size", strconv.Itoa(d.WorldSize))
	add("restarts", strconv.Itoa(d.RestartCount))
	if a := d.Accounting; a != nil {
		add("goodput", strconv.FormatFloat(a.Goodput, 'f', 4, 64))
	}
	return s
}

// Push tells the status server how a job stands, until ctx ends, and once more then. Of several nodes the first one
// does. The job waits for it at its end alone, and no longer than lastWord.
func Push(ctx context.Context, c Config, get func() report.Status) {
	if c.every == 0 {
		c.every = every
	}
	client, err := c.client()
	if err != nil {
		c.Log.Warn().Err(err).Msg("the TrainJob does not show the progress of the job")
		return
	}
	defer client.CloseIdleConnections()
	pause, warned := c.every, false
	for running := true; running; {
		within, limit := ctx, patience
		select {
		case <-ctx.Done():
			running, within, limit = false, context.WithoutCancel(ctx), lastWord
		case <-time.After(pause):
		}
		d := get()
		if d.GroupRank != 0 {
			continue
		}
		bounded, cancel := context.WithTimeout(within, limit) // what goes on at the end gives way to the last word
		err := c.push(bounded, client, statusOf(&d, time.Now()))
		cancel()
		if err == nil {
			pause = c.every
		} else if !running || ctx.Err() == nil {
			pause = min(2*pause, rarest)
			level := zerolog.DebugLevel
			if !warned {
				level, warned = zerolog.WarnLevel, true
			}
			c.Log.WithLevel(level).Err(err).Msg("the TrainJob does not show the progress of the job now")
		}
	}
}

// client is an HTTP client that trusts the server's certificate alone. It follows nobody elsewhere with the token.
func (c *Config) client() (*http.Client, error) {
	at, err := url.Parse(c.URL)
	if err != nil || at.Scheme != "https" || at.Host == "" {
		return nil, fmt.Errorf("%s=%q is no address of a server with TLS", variableURL, c.URL)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := read(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", variableCA, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: there is no certificate in %s", variableCA, c.CAFile)
		}
	}
	return &http.Client{
		Transport:     &http.Transport{TLSClientConfig: config, Proxy: nil, MaxIdleConns: 1, IdleConnTimeout: 2 * every},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// read reads a small file.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, mostFile+1))
	if err == nil && len(text) > mostFile {
		err = fmt.Errorf("%s has more than %d bytes", path, mostFile)
	}
	return text, err
}

// push sends one status. The token is read each time: it is renewed.
func (c *Config) push(ctx context.Context, client *http.Client, s status) error {
	body, err := json.Marshal(message{s})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.TokenFile != "" {
		token, err := read(c.TokenFile)
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", variableToken, err)
		}
		word := strings.TrimSpace(string(token))
		if strings.ContainsAny(word, "\r\n") {
			return errors.New(variableToken + ": what is in the file is no token")
		}
		req.Header.Set("Authorization", "Bearer "+word)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, mostAnswer)
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the status server of the TrainJob answers %s", resp.Status)
	}
	return nil
}
