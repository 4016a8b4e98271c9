package jobfile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dialect/jobfile"
)

// volcanoOf is a job of Volcano with what is in its spec.
func volcanoOf(spec string) string {
	return "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec: {" + spec + "}\n"
}

// volcano is a job of Volcano with policies of its own, and tasks, each with policies.
func volcano(policies string, tasks ...string) string {
	text := "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec:\n  policies: [" + policies + "]\n  tasks:\n"
	for i, own := range tasks {
		text += fmt.Sprintf("  - {name: t%d, replicas: %d, policies: [%s], template: {spec: {containers: [{name: c, command: [x]}]}}}\n",
			i, i+1, own)
	}
	return text
}

// What Volcano does at an event becomes a setting, or is what muster does anyway. What muster cannot do, or nobody knows,
// is refused by name.
func TestVolcanoPolicies(t *testing.T) {
	t.Parallel()
	const (
		anew   = "--max-restarts 2 --backoff-limit 2" // maxRetry is 3, the first start among them
		ever   = "--max-restarts 1000000000"
		ends   = "--max-restarts 0 --restart-limit 1000000000"
		only3  = "--restart-policy exit-code --retryable-exit-codes 3 "
		others = "different policies of failed or lost pods"
	)
	for _, c := range []struct {
		name, policies string
		tasks          []string
		words          string // what follows, or
		wrong          string
	}{
		{"none", "", []string{""}, ever, ""},
		{"restarts", "{event: PodFailed, action: RestartJob}, {event: PodEvicted, action: RestartTask}", []string{"", ""}, anew, ""},
		{"a failure ends the job", "{event: PodFailed, action: AbortJob}", []string{""}, ends, ""},
		{
			"a loss does not", "{event: PodFailed, action: AbortJob}, {event: PodEvicted, action: RestartJob}",
			[]string{""},
			"--max-restarts 0 --restart-limit 2", "",
		},
		{
			"some are retried", "{exitCode: 3, action: RestartJob}, {event: PodFailed, action: TerminateJob}",
			[]string{""},
			only3 + anew, "",
		},
		{
			"none is, after the event", "{event: PodFailed, action: AbortJob}, {exitCode: 3, action: RestartJob}",
			[]string{""},
			ends, "",
		},
		{"a code ends the job", "{exitCode: 3, action: AbortJob}", []string{""}, "--fatal-exit-codes 3 " + ever, ""},
		{
			"several do", "{exitCode: 42, action: AbortJob}, {exitCode: 3, action: AbortJob}",
			[]string{""},
			"--fatal-exit-codes 3,42 " + ever, "",
		},
		{"only some are retried", "{exitCode: 3, action: RestartJob}", []string{""}, only3 + anew, ""},
		{
			"beside a loss and one that ends the job",
			"{exitCode: 4, action: AbortJob}, {exitCode: 3, action: RestartJob}, {event: PodEvicted, action: RestartJob}",
			[]string{""},
			only3 + anew, "",
		},
		{
			"a task's event is asked before the job's codes", "{exitCode: 3, action: RestartJob}",
			slices.Repeat([]string{"{event: PodFailed, action: AbortJob}"}, 2),
			ends, "",
		},
		{
			"and its restart", "{exitCode: 3, action: AbortJob}",
			[]string{"{event: PodFailed, action: RestartTask}"},
			anew, "",
		},
		{
			"a task's event of losses is not", "{exitCode: 3, action: AbortJob}",
			[]string{"{event: PodEvicted, action: RestartTask}"},
			"--fatal-exit-codes 3 " + ever + " --restart-limit 2", "",
		},
		{
			"a task's code is asked before the job's", "{exitCode: 3, action: AbortJob}, {exitCode: 4, action: AbortJob}",
			slices.Repeat([]string{"{exitCode: 3, action: RestartJob}, {event: PodFailed, action: RestartJob}"}, 2),
			anew, "",
		},
		{
			"a task has a code of its own and the job's", "{exitCode: 4, action: AbortJob}",
			[]string{"{exitCode: 3, action: AbortJob}"},
			"--fatal-exit-codes 3,4 " + ever, "",
		},
		{
			"the same codes in each task", "",
			[]string{
				"{exitCode: 3, action: AbortJob}, {exitCode: 4, action: AbortJob}",
				"{exitCode: 4, action: AbortJob}, {exitCode: 3, action: AbortJob}",
			},
			"--fatal-exit-codes 3,4 " + ever, "",
		},
		{
			"an event twice in one policy", "{event: PodFailed, events: [PodFailed, PodEvicted, PodEvicted], action: AbortJob}",
			[]string{""},
			"--max-restarts 0 --restart-limit 0", "",
		},
		{"all of it anew", "{event: '*', action: RestartJob}", []string{""}, anew, ""},
		{"a loss ends the job", "{events: [PodEvicted], action: AbortJob}", []string{""}, ever + " --restart-limit 0", ""},
		{"all of it", "{event: '*', action: AbortJob}", []string{""}, "--max-restarts 0 --restart-limit 0", ""},
		{"the same in each task", "", slices.Repeat([]string{"{event: PodFailed, action: AbortJob}"}, 2), ends, ""},
		{"the master is done", "", []string{"{event: TaskCompleted, action: CompleteJob}", ""}, "--success-policy rank0 " + ever, ""},
		{"all are done", "{event: TaskCompleted, action: CompleteJob}", []string{""}, ever, ""},
		{
			"a task's '*' is asked before the job's completion", "{event: TaskCompleted, action: CompleteJob}",
			slices.Repeat([]string{"{event: '*', action: RestartJob}"}, 2),
			anew, "",
		},
		{
			"also where the master has none", "{event: TaskCompleted, action: CompleteJob}",
			[]string{"{event: PodFailed, action: RestartJob}", "{event: '*', action: RestartJob}"},
			"--success-policy rank0 " + anew, "",
		},
		{
			"left to the cluster", "{event: PodPending, action: RestartJob, timeout: 1h}, {event: Unknown, action: AbortJob}",
			[]string{""},
			ever, "",
		},
		{"failed for good", "{event: TaskFailed, action: AbortJob}", []string{""}, anew, ""},

		{"a typing error", "{event: PodFaild, action: AbortJob}", []string{""}, "", `unknown value "PodFaild": did you mean PodFailed?`},
		{"another one", "{events: [PodEvicted, Taskcompleted], action: AbortJob}", []string{""}, "", "did you mean TaskCompleted?"},
		{"an action", "{event: PodFailed, action: Abort}", []string{""}, "", `unknown value "Abort": did you mean AbortJob?`},
		{"Volcano's own event", "{event: OutOfSync, action: AbortJob}", []string{""}, "", `unknown value "OutOfSync"`},
		{
			"twice", "{event: PodFailed, action: AbortJob}, {event: PodFailed, action: RestartJob}",
			[]string{""},
			"", "has the event PodFailed",
		},
		{"both", "{event: PodFailed, exitCode: 3, action: AbortJob}", []string{""}, "", "not both"},
		{"neither", "{action: AbortJob}", []string{""}, "", "neither an event nor an exitCode"},
		{"no action", "{event: PodFailed}", []string{""}, "", "the policy has no action"},
		{"a failure is no success", "{event: PodFailed, action: CompleteJob}", []string{""}, "", "cannot do CompleteJob at PodFailed"},
		{"nor is a code", "{exitCode: 3, action: CompleteJob}", []string{""}, "", "cannot do CompleteJob at an exit code"},
		{"success is no failure", "{event: TaskCompleted, action: RestartJob}", []string{""}, "", "cannot do RestartJob at TaskCompleted"},
		{"other tasks", "", []string{"{event: PodFailed, action: AbortJob}", ""}, "", others},
		{"other losses", "", []string{"", "{event: PodEvicted, action: AbortJob}"}, "", others},
		{"a code of one task", "", []string{"{exitCode: 3, action: AbortJob}", ""}, "", others},
		{"a code that one task retries", "", []string{"", "{exitCode: 3, action: RestartJob}"}, "", others},
		{
			"a code that another task's event comes before", "{exitCode: 3, action: AbortJob}",
			[]string{"{event: PodFailed, action: RestartJob}", ""},
			"", others,
		},
		{"a code twice", "{exitCode: 3, action: AbortJob}, {exitCode: 0x3, action: RestartJob}", []string{""}, "", "has the exitCode 3"},
		{"all and one", "{event: '*', action: AbortJob}, {event: PodEvicted, action: RestartJob}", []string{""}, "", "no other event"},
		{"all and one, in one policy", "", []string{"{events: [PodFailed, '*'], action: AbortJob}"}, "", "no other event"},
		{"all is no success", "{event: '*', action: CompleteJob}", []string{""}, "", "cannot do CompleteJob at *"},
		{"any task is done", "{event: TaskCompleted, action: CompleteJob}", []string{"", ""}, "", "muster knows success of all nodes"},
		{"the workers are done", "", []string{"", "{event: TaskCompleted, action: CompleteJob}"}, "", "muster knows success of all nodes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, err := read(volcano(c.policies, c.tasks...), nil)
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) || !strings.Contains(err.Error(), "olicies[") {
					t.Errorf("%v, want %q at its place", err, c.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.words, flags(f)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What becomes of failed and of lost pods is told at the policies and at maxRetry, as the settings have it.
func TestVolcanoPoliciesSaid(t *testing.T) {
	t.Parallel()
	const (
		failed = "--max-restarts 0: a pod that fails ends the job"
		lost   = "--restart-limit 0: a node that is lost ends the job"
		anew   = "muster starts all workers anew together"
		only   = "--restart-policy exit-code --retryable-exit-codes 3: no other code is retried"
		every  = "'*' counts for pods that fail or are lost, and not for a task that is complete: a job whose workers succeed has succeeded"
		pod    = "replicas: 2, template: {spec: {containers: [{name: c, command: [x]}]}}}"
		late   = "no effect: the policies of each task come first"
		more   = anew + ", and goes on when a lost node is replaced"
	)
	for name, c := range map[string]struct {
		spec string
		want map[string]string // what is said, by the path below spec
	}{
		"a failure ends the job, a loss does not": {
			"maxRetry: 5, policies: [{event: PodFailed, action: AbortJob}, {event: PodEvicted, action: RestartJob}]",
			map[string]string{
				"maxRetry":           "--restart-limit 4: how often a lost node is replaced; pods that fail do not count",
				"policies[0].action": failed, "policies[1].action": more,
			},
		},
		"the same by itself": {
			"policies: [{event: PodFailed, action: AbortJob}]",
			map[string]string{"policies[0].action": failed},
		},
		"both end it": {
			"maxRetry: 5, policies: [{events: [PodFailed, PodEvicted], action: AbortJob}]",
			map[string]string{
				"maxRetry":           "no effect: no policy starts the job anew",
				"policies[0].action": failed + "; " + lost,
			},
		},
		"a loss ends the job, a failure does not": {
			"maxRetry: 5, policies: [{event: PodFailed, action: RestartJob}, {event: PodEvicted, action: AbortJob}]",
			map[string]string{
				"maxRetry":           "--backoff-limit 4: restarts of all nodes together",
				"policies[0].action": anew, "policies[1].action": lost,
			},
		},
		"all events end it": {
			"policies: [{event: '*', action: AbortJob}]",
			map[string]string{"policies[0].action": every + "; " + failed + "; " + lost},
		},
		"all events start it anew": {
			"policies: [{event: '*', action: RestartJob}]", map[string]string{"policies[0].action": every + "; " + more},
		},
		"another event beside": {
			"policies: [{events: [PodPending, PodFailed], action: AbortJob}]",
			map[string]string{
				"policies[0].action": "all nodes start together, and pods that find no machine are the cluster's; " + failed,
			},
		},
		"codes": {
			"policies: [{exitCode: 3, action: AbortJob}, {exitCode: 4, action: RestartJob}, {event: PodFailed, action: RestartJob}]",
			map[string]string{
				"policies[0].exitCode": "--fatal-exit-codes 3", "policies[1].action": anew, "policies[2].action": anew,
			},
		},
		"codes that are retried": {
			"policies: [{exitCode: 4, action: AbortJob}, {exitCode: 3, action: RestartJob}]",
			map[string]string{"policies[0].exitCode": "a pod that fails with this code is not started anew", "policies[1].action": only},
		},
		"codes before an end": {
			"policies: [{exitCode: 4, action: AbortJob}, {event: PodFailed, action: AbortJob}, {exitCode: 3, action: RestartJob}]",
			map[string]string{
				"policies[0].exitCode": "a pod that fails with this code is not started anew",
				"policies[2].exitCode": "no effect: the policy of an event before it counts for every exit code",
			},
		},
		"what a task says first": {
			"policies: [{exitCode: 3, action: RestartJob}, {exitCode: 4, action: AbortJob}, {event: PodFailed, action: RestartJob}], " +
				"tasks: [{policies: [{event: PodFailed, action: AbortJob}], name: a, " + pod + ", {policies: [{event: PodFailed, " +
				"action: TerminateJob}], name: b, " + pod + "]",
			map[string]string{
				"policies[0].action": late, "policies[1].exitCode": late, "policies[2].action": late,
				"tasks[0].policies[0].action": failed,
				"tasks[1].policies[0].action": failed,
			},
		},
		"half of what the job says": {
			"policies: [{event: '*', action: AbortJob}], tasks: [{policies: [{event: PodFailed, action: RestartJob}], " + pod + "]",
			map[string]string{"policies[0].action": every + "; " + lost, "tasks[0].policies[0].action": anew},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(c.spec, "tasks:") {
				c.spec += ", tasks: [{" + pod + "]"
			}
			f, err := read(volcanoOf(c.spec), nil)
			if err != nil {
				t.Fatal(err)
			}
			said := map[string]string{}
			for _, l := range f.Lines {
				path := strings.TrimPrefix(l.Path, "spec.")
				if _, asked := c.want[path]; asked {
					said[path] += l.As
				}
			}
			if diff := cmp.Diff(c.want, said); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Where no policy says what becomes of failed pods, Volcano leaves that to their restartPolicy: Never ends the job, and
// containers that the kubelet starts anew are counted by TaskFailed alone. maxRetry is how often policies start the job, the
// first start among them, and Volcano's admission webhook makes 3 of 0.
func TestVolcanoRestartPolicy(t *testing.T) {
	t.Parallel()
	const (
		evicted = "policies: [{event: PodEvicted, action: RestartJob}], "
		failed  = "policies: [{event: PodFailed, action: RestartJob}], "
		counted = "policies: [{event: TaskFailed, action: AbortJob}], "
		tasks   = "tasks: [{replicas: 2, template: {spec: {restartPolicy: %s, containers: [{name: c, command: [x]}]}}, maxRetry: %s}]"
		pods    = "tasks[0].template.spec.restartPolicy"
		stays   = "--max-restarts 0: a pod that fails ends the job, as no policy starts it anew"
		anew    = "muster starts all workers anew together"
		ever    = anew + ", without a limit: no policy says what becomes of failed pods"
		said    = "the policies say what becomes of failed pods; any restart starts all workers anew"

		together = "restarts of all nodes together"
		last     = together + ", until TaskFailed ends the job"
		replaced = "--max-restarts 0 --restart-limit 1000000000" // lost nodes, without a limit
	)
	for _, c := range []struct {
		spec, policy, retry string
		words               string
		at, said            string // what is said of a line
	}{
		{"", "Never", "2", replaced, pods, stays},
		{"maxRetry: 5, ", "Never", "2", replaced, "maxRetry", "no effect: no policy starts the job anew"},
		{
			evicted, "Never", "2", "--max-restarts 0 --restart-limit 2",
			"policies[0].action", anew + ", and goes on when a lost node is replaced; --restart-limit 2: how often a lost node is replaced",
		},
		{
			"policies: [{exitCode: 3, action: RestartJob}], ", "Never", "2",
			"--restart-policy exit-code --retryable-exit-codes 3 --max-restarts 2 --backoff-limit 2",
			"policies[0].action", "--restart-policy exit-code --retryable-exit-codes 3: no other code is retried",
		},
		{
			"policies: [{exitCode: 3, action: AbortJob}], ", "Never", "2", replaced,
			"policies[0].exitCode", "a pod that fails with this code is not started anew",
		},
		{"", "OnFailure", "2", "--max-restarts 1000000000", pods, ever},
		{evicted, "OnFailure", "2", "--max-restarts 1000000000 --restart-limit 2", pods, ever},
		{counted, "OnFailure", "2", "--max-restarts 1 --backoff-limit 1", "tasks[0].maxRetry", "--backoff-limit 1: " + last},
		{counted, "OnFailure", "0", "--max-restarts 2 --backoff-limit 2", pods, "--backoff-limit 2: " + last},
		{counted, "OnFailure", "-1", "--max-restarts 1000000000", "tasks[0].maxRetry", ever},
		{"", "OnFailure", "-1", "--max-restarts 1000000000", pods, ever},
		{counted, "Never", "2", replaced, pods, stays},
		{failed, "Never", "2", "--max-restarts 2 --backoff-limit 2", pods, said},
		{failed + "maxRetry: 0, ", "Never", "2", "--max-restarts 2 --backoff-limit 2", "maxRetry", "--backoff-limit 2: " + together},
		{failed + "maxRetry: 1, ", "Never", "2", replaced, "maxRetry", "--max-restarts 0: the first failure ends the job"},
	} {
		f, err := read(volcanoOf(c.spec+fmt.Sprintf(tasks, c.policy, c.retry)), nil)
		if err != nil {
			t.Errorf("%s%s: %v", c.spec, c.policy, err)
			continue
		}
		if diff := cmp.Diff(c.words, flags(f)); diff != "" {
			t.Errorf("%s%s (-want +got):\n%s", c.spec, c.policy, diff)
		}
		i := slices.IndexFunc(f.Lines, func(l jobfile.Line) bool { return l.Path == "spec."+c.at })
		if i < 0 || f.Lines[i].As != c.said {
			t.Errorf("%s%s: %s is said to be %+v, want %q", c.spec, c.policy, c.at, f.Lines[max(i, 0)], c.said)
		}
	}
	_, err := read(volcanoOf("tasks: ["+
		"{name: a, template: {spec: {restartPolicy: Never, containers: [{name: c, command: [x]}]}}}, "+
		"{name: b, template: {spec: {restartPolicy: OnFailure, containers: [{name: c, command: [x]}]}}}]"), nil)
	if err == nil || !strings.Contains(err.Error(), "restartPolicy: the tasks have different policies of failed or lost pods") {
		t.Errorf("pods with different policies: %v", err)
	}
}

// flags are the settings that follow from a file.
func flags(f *jobfile.File) string {
	var list []string
	for _, w := range f.Words {
		list = append(list, "--"+w.Flag+" "+w.Text)
	}
	return strings.Join(list, " ")
}

// What Volcano's admission webhook refuses is refused here, too. Tasks without names are none of one name.
func TestVolcanoAdmission(t *testing.T) {
	t.Parallel()
	const pod = "template: {spec: {containers: [{name: c, command: [x]}]}}"
	for spec, want := range map[string]string{
		"tasks: [{name: a, " + pod + "}, {" + pod + "}, {name: a, " + pod + "}]": "[2].name: a task before this one has the name a",

		"plugins: {svcs: []}, tasks: [{" + pod + "}]": `4:18: spec.plugins.svcs: unknown value "svcs": did you mean svc?`,
		"plugins: [svc], tasks: [{" + pod + "}]":      "spec.plugins: give a map",

		"plugins: {svc: [], env: [], ssh: []}, tasks: [{" + pod + "}, {" + pod + "}]": "",
	} {
		f, err := read(volcanoOf(spec), nil)
		switch {
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", spec, err, want)
		case want == "" && (err != nil || f.Pods[0].Name != "j-default0-0" || f.Pods[1].Name != "j-default1-0"):
			t.Errorf("%s: %v", spec, err)
		}
	}
}
