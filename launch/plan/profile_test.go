package plan

import (
	"fmt"
	"strings"
	"testing"

	"muster/internal/errhint"
	"muster/launch/job"
)

// testPlaces are places of so many workers at a host.
func testPlaces(host string, world int) *Places {
	p := &Places{Coordinator: host + ":9"}
	for rank := range world {
		p.Workers = append(p.Workers, fmt.Sprintf("%s:%d", host, 1000+rank))
	}
	return p
}

func TestEnvProfile(t *testing.T) {
	paddle := map[string]string{
		"PADDLE_TRAINER_ID": "5", "PADDLE_TRAINERS_NUM": "6", "PADDLE_CURRENT_ENDPOINT": "h:1005", "PADDLE_MASTER": "h:9",
		"PADDLE_TRAINER_ENDPOINTS": "h:1000,h:1001,h:1002,h:1003,h:1004,h:1005", "PADDLE_LOCAL_RANK": "1", "PADDLE_NNODES": "2",
		"FLAGS_selected_gpus": "4,5,6,7", "MASTER_ADDR": "", "PADDLE_DISTRI_BACKEND": "",
	}
	jax := map[string]string{
		"JAX_COORDINATOR_ADDRESS": "h:9", "JAX_NUM_PROCESSES": "6", "JAX_PROCESS_ID": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
		"OMPI_COMM_WORLD_RANK": "5", "JAX_LOCAL_DEVICE_IDS": "4,5,6,7", "MASTER_ADDR": "10.0.0.1", "JAX_COORDINATOR_BIND_ADDRESS": "",
	}
	for _, c := range []struct {
		profile job.EnvProfile
		set     string // a variable of the user's
		devices int
		want    map[string]string
	}{
		{job.ProfilePaddle, "", 8, paddle},
		{job.ProfilePaddle, "", 0, map[string]string{"PADDLE_DISTRI_BACKEND": "gloo", "FLAGS_selected_gpus": ""}},
		{job.ProfilePaddle, "", 1, map[string]string{"FLAGS_selected_gpus": "0"}},
		{job.ProfileJAX, "", 8, jax},
		{job.ProfileJAX, "", 0, map[string]string{"JAX_LOCAL_DEVICE_IDS": ""}},
		{job.ProfileJAX, "JAX_LOCAL_DEVICE_IDS", 8, map[string]string{"JAX_LOCAL_DEVICE_IDS": "mine"}},
		{job.ProfileTensorFlow, "", 8, map[string]string{
			"TF_CONFIG": `{"cluster":{"worker":["h:1000","h:1001","h:1002","h:1003","h:1004","h:1005"]},` +
				`"task":{"type":"worker","index":5}}`,
		}},
	} {
		j := testJob("2")
		j.Env.Profile = c.profile
		if c.set != "" {
			j.Env.Set = []job.Var{{Name: c.set, Value: "mine"}}
		}
		m := testMachine(t.TempDir())
		m.CountDevices = func() int { return c.devices }
		p, err := New(j, m)
		if err != nil {
			t.Fatal(err)
		}
		w, err := p.At(testPlaces("h", 6)).Worker(testRound(2), 1, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range c.want {
			if got := w.Env.set()[name]; got != want {
				t.Errorf("%s with %d devices: %s is %q, want %q", c.profile, c.devices, name, got, want)
			}
		}
	}
}

// TestEnvProfileRefused: what the framework or Linux could not take is told before a worker starts.
func TestEnvProfileRefused(t *testing.T) {
	j := testJob("2")
	j.Env.Profile = job.ProfilePaddle
	p, err := New(j, testMachine(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Check(testPlaces("[fe80::1]", 1)); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), "no IPv6") {
		t.Errorf("an IPv6 address: %v", err)
	}
	if err := p.Check(testPlaces("h", 1)); err != nil {
		t.Error(err)
	}
	r := testRound(2)
	r.WorldSize = 10_000
	if _, err := p.At(testPlaces("a-node-with-a-name", r.WorldSize)).Worker(r, 0, 0, ""); err == nil ||
		!strings.Contains(err.Error(), "PADDLE_TRAINER_ENDPOINTS would have 240999 bytes, and Linux passes 131072") {
		t.Errorf("10,000 workers: %v", err)
	}
}
