package jobfile_test

import (
	"fmt"
	"strings"
	"testing"

	"muster/cmd/dialect/jobfile"
)

// aitj is an AITrainingJob with groups of replicas, each "name: fields".
func aitj(spec string, groups ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: kongming.cce.baiudbce.com/v1\nkind: AITrainingJob\nmetadata: {name: j}\nspec:\n"+
		"  %s\n  replicaSpecs:\n", spec)
	for _, g := range groups {
		name, fields, _ := strings.Cut(g, ": ")
		if fields != "" {
			fields += ", "
		}
		fmt.Fprintf(&b, "    %s: {%stemplate: {spec: {containers: "+
			"[{name: side, command: [no]}, {name: aitj-0, command: [x]}]}}}\n", name, fields)
	}
	return b.String()
}

// words are the settings that follow from a file.
func words(f *jobfile.File) string {
	var list []string
	for _, w := range f.Words {
		list = append(list, w.Flag+" "+w.Text)
	}
	return strings.Join(list, ", ")
}

// TestAITrainingJobRules: what a job whose pods all train says of its end and of restarts becomes settings.
func TestAITrainingJobRules(t *testing.T) {
	t.Parallel()
	const two, any3 = "master: replicaType: master", "worker: replicas: 3"
	for _, c := range []struct {
		spec   string
		groups []string
		want   string
	}{
		{"timeLimit: 60", []string{any3}, "active-deadline 60s, restart-policy never, success-policy all, fail-policy any"},
		{
			"cleanPodPolicy: None",
			[]string{any3 + ", completePolicy: Any"},
			"clean-policy none, restart-policy never, success-policy any, fail-policy any",
		},
		{
			"priority: normal",
			[]string{any3 + ", completePolicy: Rank0, failPolicy: None"},
			"restart-policy never, success-policy rank0, fail-policy none",
		},
		{
			"completePolicy: Any",
			[]string{any3 + ", completePolicy: None", two},
			"restart-policy never, success-policy rank0, fail-policy any",
		},
		{"failPolicy: None", []string{two, any3}, "restart-policy never, success-policy all, fail-policy none"},
		{"failPolicy: All", []string{any3 + ", failPolicy: All"}, "restart-policy never, success-policy all, fail-policy all"},
		{
			"restartingExitCode: 137,128",
			[]string{any3 + ", restartPolicy: OnNodeFailWithExitCode, restartLimit: 2, restartTimeLimit: 60, restartTimeout: 90"},
			"restart-policy on-node-fail-or-exit-code, retryable-exit-codes 137,128, max-restarts 2, " +
				"backoff-limit 2, restart-window 60s, join-timeout 90s, success-policy all, fail-policy any",
		},
		{
			"faultTolerant: true",
			[]string{any3 + `, faultTolerantPolicy: [{exitCodes: "129,10001,1-9", restartScope: Pod}, {exceptionalEvent: nodeNotReady}]`},
			"restart-policy on-node-fail-or-exit-code, retryable-exit-codes 129,1-9, max-restarts 1000000000, restart-scope node, " +
				"success-policy all, fail-policy any",
		},
		{
			"priority: x",
			[]string{any3 + ", restartPolicy: ExitCode, restartLimit: 0"},
			"restart-policy exit-code, retryable-exit-codes >=128, max-restarts 0, success-policy all, fail-policy any",
		},
		{
			"priority: x",
			[]string{any3 + ", restartPolicy: Always"},
			"restart-policy on-failure, max-restarts 1000000000, success-policy all, fail-policy any",
		},
		{
			"failPolicy: Rank0",
			[]string{any3 + ", failPolicy: Rank0, restartPolicy: OnFailure"},
			"restart-policy on-failure, max-restarts 1000000000, success-policy all, fail-policy any",
		},
		{
			"failPolicy: None",
			[]string{any3 + ", restartPolicy: OnNodeFail"},
			"restart-policy on-node-fail, max-restarts 1000000000, success-policy all, fail-policy none",
		},
		{"priority: x", []string{"a: restartPolicy: OnNodeFail"}, "restart-policy never, success-policy all, fail-policy any"},
		{
			"priority: x",
			[]string{two + ", restartPolicy: OnFailure, restartLimit: 5", any3 + ", restartPolicy: OnFailure, restartLimit: 3"},
			"restart-policy on-failure, max-restarts 3, backoff-limit 3, success-policy all, fail-policy any",
		},
	} {
		f, err := read(aitj(c.spec, c.groups...), nil)
		if err != nil {
			t.Errorf("%s %q: %v", c.spec, c.groups, err)
			continue
		}
		if got := words(f); got != c.want {
			t.Errorf("%s %q:\n got %s\nwant %s", c.spec, c.groups, got, c.want)
		}
		if _, nodes, err := f.Place(jobfile.Places{Hosts: []string{"h0", "h1", "h2", "h3"}}); err != nil || nodes[0].Argv[0] != "x" {
			t.Errorf("%v %+v", err, nodes)
		}
	}
}

// TestAITrainingJobTrainers: the rules of hosts that a launcher reaches go to its horovodrun, unless the launcher's
// container says something else.
func TestAITrainingJobTrainers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ trainer, want string }{
		{"restartLimit: 3", "RESTART_POLICY=never"},
		{"failPolicy: None, restartLimit: 3, restartTimeout: 9", "HOROVOD_ELASTIC_TIMEOUT=9"},
		{
			`restartPolicy: ExitCode, failPolicy: Rank0, restartLimit: 3, restartTimeLimit: 7, faultTolerantPolicy: [{exitCodes: "3-5"}]`,
			"RESTART_POLICY=exit-code RETRYABLE_EXIT_CODES=3-5 FAIL_POLICY=rank0 BACKOFF_LIMIT=3 RESTART_WINDOW=7s RESTART_SCOPE=world",
		},
		{"restartPolicy: OnFailure, restartLimit: 3, restartScope: Pod", "RESTART_POLICY=on-failure BACKOFF_LIMIT=3"},
	} {
		f, err := read(aitj("plugin: {discovery: []}", "launcher: ", "trainer: replicas: 2, "+c.trainer), nil)
		if err != nil {
			t.Errorf("%s: %v", c.trainer, err)
			continue
		}
		_, nodes, err := f.Place(jobfile.Places{Hosts: []string{"h0", "h1"}})
		if err != nil || len(nodes) != 1 {
			t.Fatalf("%v %+v", err, nodes)
		}
		var got []string
		for _, v := range nodes[0].Env {
			if name, ours := strings.CutPrefix(v.Name, "MUSTER_"); ours && name != "REPLICA" {
				got = append(got, name+"="+v.Value)
			} else if strings.HasPrefix(v.Name, "HOROVOD_") {
				got = append(got, v.Name+"="+v.Value)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.trainer, strings.Join(got, " "), c.want)
		}
	}
}

// TestAITrainingJobRefuses: what muster cannot do is refused with its place.
func TestAITrainingJobRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec   string
		groups []string
		want   string
	}{
		{"priority: x", []string{"trainer: replicas: 0"}, "job.yaml:7:25: spec.replicaSpecs.trainer.replicas: a job with no replica"},
		{
			"priority: x",
			[]string{"trainer: minReplicas: 3, maxReplicas: 2"},
			"the least number of replicas, 3, is greater than the most, 2",
		},
		{"priority: x", []string{"trainer: replicas: 6, maxReplicas: 5"}, "the number of replicas, 6, is above the most, 5"},
		{"priority: x", []string{"trainer: replicas: 1, minReplicas: 2"}, "the number of replicas, 1, is below the least, 2"},
		{"priority: x", []string{"trainer: restartPolicy: OnNodeFails"}, "did you mean OnNodeFail?"},
		{"priority: x", []string{"launcher: ", "trainer: failPolicy: None, restartPolicy: OnNodeFails"}, "did you mean OnNodeFail?"},
		{"priority: x", []string{"launcher: ", "trainer: ", "other: restartPolicy: OnNodeFails"}, "did you mean OnNodeFail?"},
		{"priority: x", []string{"trainer: restartScope: Pods"}, "did you mean Pod?"},
		{"priority: x", []string{"trainer: faultTolerantPolicy: [{exitCodes: 1-x}]"}, `"1-x" is no exit code`},
		{"priority: x", []string{"trainer: faultTolerantPolicy: [{exceptionalEvent: nodeAway}]"}, `unknown event "nodeAway"`},
		{"plugins: {}", []string{"trainer: "}, `unknown field "plugins": did you mean plugin?`},
		{"priority: x", []string{"launcher: "}, "the launcher has no hosts"},
		{"priority: x", []string{"launcher: replicas: 2", "trainer: "}, "there is one launcher"},
		{"priority: x", []string{"a: restartPolicy: OnFailure", "b: "}, "muster has one restart policy for all nodes"},
		{"completePolicy: Any", []string{"a: ", "b: replicas: 2"}, "not Any of groups with a All, b All"},
		{"priority: x", []string{"a: completePolicy: None", "b: replicas: 2"}, "not All of groups with a None, b All"},
	} {
		if _, err := read(aitj(c.spec, c.groups...), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: got %v, want %s", c.spec, c.groups, err, c.want)
		}
	}
}
