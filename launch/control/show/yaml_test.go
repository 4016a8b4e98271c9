package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/launch/report"
)

// TestYAMLPlain: what is written without a tree of all nodes is what would be written with one.
func TestYAMLPlain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		plain bool
	}{
		{`{}`, false},
		{`{"a":1,"b":-2.5e+06,"c":1e21,"d":0.1,"e":true,"f":false,"g":null,"h":"","i":[],"j":{}}`, true},
		{`{"tasks":[{"node":"n-0","traffic":[{"interface":"eth0","sentBytes":18446744073709551615},{"x":[1,2]}]},{},[],"a b",null]}`, true},
		{`{"a":{"b":{"c":{"d":[{"e":{"f":"g"}}]}}},"z":1}`, true},
		{`{"s":["true","null","~","1","1.5","0x10","1e3","2026-11-27T01:02:03Z","2026-11-27",` +
			`"yes","no","on","y","=","<<",".inf",".nan"]}`, true},
		{`{"s":["- a","a: b","a #b","#","'q'","\"q\"","a\\b","[x]","{x}","&a","*a","!a","|",">","%","@","` + "`" +
			`"," lead","trail ","\t","a\tb"]}`, true},
		{`{"s":["ü","日本語","\u0007","\u2028","\ufeff","🙂","a\u0000b"]}`, true},
		{`{"true":1,"a b":2,"1":3,"":4,"a: b":5,"=":6,"loss/train":7}`, true},
		{`{"s":"two\nlines"}`, false},
		{`{"s":["\n"]}`, false},
		{`{"two\nlines":1}`, false},
		{`{"` + strings.Repeat("k", 130) + `":1}`, false},
		{`{"s":"` + strings.Repeat("word ", 400) + `"}`, true},
		{`{"s":[[1]]}`, false},
		{`[1]`, false},
		{`"s"`, false},
	} {
		var want, got bytes.Buffer
		if err := anyYAML(&want, []byte(c.text)); err != nil {
			t.Fatalf("%s: %v", c.text, err)
		}
		if err := YAML(&got, json.RawMessage(c.text)); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
		if diff := cmp.Diff(want.String(), got.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.text, diff)
		}
		if y := newYAMLWriter(&got, []byte(c.text)); (y.document() == nil) != c.plain {
			t.Errorf("%s: plain is %v", c.text, !c.plain)
		}
	}
	status, err := json.Marshal(report.Status{
		RunID: "3", Name: "a: b", StartTime: &noon, Tasks: []report.Task{{Node: "n1", Ranks: "0-7"}}, Conditions: []report.Condition{},
		Ranks: []report.Rank{{Node: "n1", StartTime: &noon, Progress: &report.Progress{Values: map[string]float64{"loss": 2.5}}}, {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := newYAMLWriter(io.Discard, status).document(); err != nil {
		t.Errorf("a status is not plain: %v", err)
	}
	if err := YAML(&bytes.Buffer{}, func() {}); err == nil || errors.Is(err, errNotPlain) {
		t.Errorf("a function: %v", err)
	}
}
