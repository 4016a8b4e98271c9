package convert

import (
	"strings"
	"testing"

	"muster/cmd/manifest"
)

// TestVariables: variables of a container that its launcher reads become flags, as they count there: a flag of the launcher
// wins over them. Those that nothing in the pod reads are told, and not given to muster run, which would read them.
func TestVariables(t *testing.T) {
	t.Parallel()
	const (
		vars = `{name: MUSTER_NPROC_PER_NODE, value: "2"}, {name: PET_MAX_RESTARTS, value: "3"}, {name: MUSTER_GRACE, value: 9s},
                {name: PET_TEE, value: "3"}, {name: MUSTER_RDZV, value: "c10d://a"}, {name: SIZE, value: "4"}`
		idle = "nothing in the pod reads it as a setting"
	)
	with := func(file string) string {
		return strings.Replace(file, "command: COMMAND", "command: COMMAND, env: ["+vars+"]", 1)
	}
	for _, c := range []struct {
		file, command, procs string
		restarts             int
		grace, flags, told   string
	}{
		{with(torchJob), "[muster, run, --, x]", "2", 3, "9s", "--tee=3", ""},
		{with(torchJob), `[muster, run, -n, "8", --max-restarts=5, --, x]`, "8", 5, "9s", "--tee=3", ""},
		{with(torchJob), "[torchrun, --nproc-per-node=8, x.py]", "8", 3, "9s", "--tee=3", "env MUSTER_NPROC_PER_NODE: " + idle},
		{with(torchJob), "[python, x.py]", "1", 0, "30s", "", "env MUSTER_GRACE: " + idle},
		{with(mpiJob), "[mpirun, x]", "1", 0, "9s", "", "env PET_MAX_RESTARTS: " + idle},
	} {
		req := read(t, c.file, c.command)
		what, err := Launched(req)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"jobset", manifest.ToCommand} {
			s, left := manifest.Convert(req.File, kind, what)
			var told strings.Builder
			for _, l := range left {
				told.WriteString(l.Path + ": " + l.Why + "\n")
			}
			flags := strings.Join(s.Flags, " ")
			if s.Procs != c.procs || s.MaxRestarts != c.restarts || s.Grace.String() != c.grace || !strings.Contains(flags, c.flags) ||
				strings.Contains(flags, "nproc") || !strings.Contains(told.String(), c.told) {
				t.Errorf("%s to %s: %s workers, %d restarts, grace %s, %q, want %s, %d, %s, %q\n%s", c.command, kind, s.Procs,
					s.MaxRestarts, s.Grace, flags, c.procs, c.restarts, c.grace, c.flags, told.String())
			}
			if env := strings.Join(s.Env, " "); !strings.HasSuffix(env, "SIZE=4") || strings.Contains(env, "MUSTER_") ||
				strings.Contains(env, "PET_MAX_RESTARTS") {
				t.Errorf("%s to %s: variables %q", c.command, kind, env)
			}
			if err := Verify(&s, nil); err != nil {
				t.Errorf("%s to %s: %v", c.command, kind, err)
			}
		}
	}
}
