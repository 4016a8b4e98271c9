package testutil_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// sshOutput runs a command on a server by OpenSSH's own client.
func sshOutput(t *testing.T, s *testutil.SSHServer, command string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ssh", "-F", s.Client.Config, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
		s.Name, command)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

func TestSSHD(t *testing.T) {
	testutil.Long(t)
	client := testutil.NewSSHClient(t)
	first := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Env: []string{`WITH="quotes" and spaces`}})
	second := testutil.SSHD(t, testutil.SSHDConfig{Client: client, Address: "::1", Name: "six"})
	if got, err := sshOutput(t, first, `echo "$HOME $WITH"`); err != nil || got != first.Home+` "quotes" and spaces` {
		t.Errorf("the first one says %q, %v\n%s", got, err, first.Log())
	}
	if got, err := sshOutput(t, second, `echo "$HOME"`); err != nil || got != second.Home {
		t.Errorf("the second one says %q, %v\n%s", got, err, second.Log())
	}
	cmd := exec.CommandContext(t.Context(), "ssh", "-F", client.Config, first.Name, "echo here; sleep 1000")
	_, stdout := testutil.StartPiped(t, cmd)
	if _, err := stdout.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	first.Cut()
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 255 {
		t.Errorf("after a cut ssh ends with %v", err)
	}
	first.Stop()
	if _, err := sshOutput(t, first, "true"); err == nil {
		t.Error("a stopped server answers")
	}
	first.Start()
	if _, err := sshOutput(t, first, "true"); err != nil {
		t.Errorf("the server that was started again: %v\n%s", err, first.Log())
	}
}

func TestSSHDOnHosts(t *testing.T) {
	hosts := testutil.Hosts(t, 2)
	client := testutil.NewSSHClient(t)
	for _, h := range hosts {
		testutil.SSHD(t, testutil.SSHDConfig{Client: client, Host: h})
	}
	out, err := hosts[0].Command("ssh", "-F", client.Config, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "node1",
		"hostname; echo $TMPDIR").Output()
	if want := "node1\n" + hosts[1].Dir + "/tmp\n"; err != nil || string(out) != want {
		t.Errorf("node1 says %q and not %q: %v", out, want, err)
	}
}
