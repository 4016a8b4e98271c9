package metrics

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"muster/internal/testutil"
)

// names are those that samples have, with the kinds of their metrics.
func names() map[string]string {
	list := map[string]string{}
	for _, f := range Families() {
		list[f.Name] = f.Kind
		switch f.Kind {
		case histogram:
			list[f.Name+"_bucket"] = f.Kind
			fallthrough
		case summary:
			list[f.Name+"_sum"], list[f.Name+"_count"] = f.Kind, f.Kind
		}
	}
	return list
}

// checkQuery has Prometheus' own parser read a query, which names only metrics that there are.
func checkQuery(t *testing.T, where, query string) (used []string) {
	t.Helper()
	expr, err := parser.ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return nil
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if v, is := n.(*parser.VectorSelector); is {
			used = append(used, v.Name)
			if kind := names()[v.Name]; kind == "" || kind == summary && !strings.HasPrefix(v.Name, "muster_") {
				t.Errorf("%s: there is no metric %q", where, v.Name)
			}
		}
		return nil
	})
	if len(used) == 0 {
		t.Errorf("%s asks for nothing", where)
	}
	return used
}

// The alert rules and the dashboard are of metrics that there are.
func TestExamples(t *testing.T) {
	text, err := os.ReadFile("../../../examples/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				For         string            `yaml:"for"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	dec := yaml.NewDecoder(strings.NewReader(string(text)))
	dec.KnownFields(true)
	if err := dec.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range rules.Groups[0].Rules {
		checkQuery(t, r.Alert, r.Expr)
		if r.Alert == "" || seen[r.Alert] || r.Labels["severity"] == "" || !strings.HasSuffix(r.Annotations["summary"], ".") {
			t.Errorf("%+v", r)
		}
		seen[r.Alert] = true
	}
	if len(seen) < 5 {
		t.Errorf("%d rules", len(seen))
	}

	text, err = os.ReadFile("../../../examples/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		if len(p.Targets) == 0 || p.Title == "" {
			t.Errorf("%+v", p)
		}
		for _, q := range p.Targets {
			checkQuery(t, p.Title, strings.ReplaceAll(q.Expr, "$instance", "x"))
		}
	}
	if len(board.Panels) < 10 || !strings.Contains(board.Templating.List[1].Query, "muster_job_info") {
		t.Errorf("%+v", board)
	}
}

// TestPromtool: Prometheus' own tool finds no fault with the rules and with what is served.
func TestPromtool(t *testing.T) {
	promtool := filepath.Join(testutil.CacheDir(), "promtool")
	if _, err := os.Stat(promtool); err != nil {
		testutil.Missing(t, "promtool")
	}
	var b bytes.Buffer
	if err := write(&b, full()); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", "../../../examples/alerts.yml"}, {"check", "metrics"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Stdin = bytes.NewReader(b.Bytes())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// The page has each metric, with its kind, and no other.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	metric := regexp.MustCompile("`(muster_[a-z_]+)`")
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 {
			continue
		}
		for _, m := range metric.FindAllStringSubmatch(cells[1], -1) {
			told[m[1]] = strings.TrimSpace(cells[2])
		}
	}
	for _, f := range Families() {
		if told[f.Name] != f.Kind {
			t.Errorf("%s is a %s, and the page says %q", f.Name, f.Kind, told[f.Name])
		}
		delete(told, f.Name)
	}
	if len(told) > 0 {
		t.Errorf("the page has %v", slices.Collect(func(yield func(string) bool) {
			for name := range told {
				if !yield(name) {
					return
				}
			}
		}))
	}
}
