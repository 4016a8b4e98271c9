package health

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/check"
)

// said is a node of one GPU, 0000:1b:00.0, whose kernel has said this a minute ago.
func said(lines ...string) *Node {
	return healthy().with(true, device()).limits(func(f *facts) {
		f.log.From = "test"
		for _, l := range lines {
			f.log.Lines = append(f.log.Lines, LogLine{Age: time.Minute, Text: l})
		}
	})
}

func line(code int, more string) string {
	return fmt.Sprintf("NVRM: Xid (PCI:0000:1b:00): %d, %s", code, more)
}

// TestXIDs are lines as the driver writes them, and what they mean.
func TestXIDs(t *testing.T) {
	const pass, warn, fail = check.Pass, check.Warn, check.Fail
	policy := &check.Policy{XIDs: map[int]check.Status{48: pass, 31: fail}}
	for text, want := range map[string]check.Status{
		line(48, "pid=1234, name=python, DBE (double bit error) counts"): fail,
		"NVRM: Xid (0000:1b:00): 48, DBE":                                fail,
		"NVRM: Xid (PCI:00000000:1B:00): 48, DBE":                        fail,
		// Not our form: no address that ends.
		"NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 48, DBE":                                                     pass,
		line(31, "pid=1234, name=python, MMU Fault: ENGINE GRAPHICS"):                                      pass,
		line(13, "Graphics Exception"):                                                                     pass,
		line(63, "Row Remapper: New row marked for remapping, reset gpu to activate"):                      warn,
		line(94, "Contained: SM"):                                                                          warn,
		line(999, "of a later driver"):                                                                     warn,
		line(119, "Timeout after 6s of waiting for RPC response from GPU1 GSP!"):                           fail,
		line(145, "RLW_REMAP Nonfatal XC0 i0 Link 06 (0x00000004 0x00000000 0x00000000)"):                  warn,
		line(145, "NETIR_INT Fatal XC0 i0 Link 06 (0x00000004 0x00000000 0x00000000)"):                     fail,
		line(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"):               fail,
		line(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"):             fail,
		line(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"):               pass,
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up":                  fail,
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Non-fatal, Link 36 Minion Link DLREQ interrupt": warn,
		"NVRM: GPU at PCI:0000:1b:00: GPU-11111111-2222-3333-4444-555555555555":                            pass,
		"usb 1-1: new high-speed USB device number 79, Xid":                                                pass,
		"NVRM: Xid (PCI:0000:1b:00): 99999999999999999999, what":                                           warn,
		line(79,
			"pid='<unknown>', name=<unknown>, GPU has fallen off the bus."): pass, // gpu-lost tells
		"NVRM: Xid (PCI:0000:99:00): 74, pid=1, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)": fail,
	} {
		if got := statusOf(t, said(text).Check(), "xid"); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	for code, want := range map[int]check.Status{48: pass, 31: fail, 13: pass} {
		n := said(line(code, "x"))
		n.Policy = policy
		if got := statusOf(t, n.Check(), "xid"); got != want {
			t.Errorf("%d under a policy: %v, want %v", code, got, want)
		}
	}
	// The same error is told once, with its latest line.
	for _, r := range said(line(48, "first"), line(48, "second"), line(63, "third")).Check() {
		if r.ID == "xid" && r.Value == "48" &&
			(!strings.Contains(r.Reason, "2 times") || !strings.Contains(r.Reason, "second") || r.Subject.GPU == nil || r.Source != "log") {
			t.Errorf("%+v", r)
		}
	}
	// What belongs to a GPU that the job does not use is another's business.
	n := said(line(48, "x"))
	other := device()
	other.BusID, other.Index = "0000:1c:00.0", 1
	f := accel.Family{Vendor: "nvidia", Devices: []accel.Device{device(), other}, Visible: []accel.Device{other}, VisibleCount: 1}
	n.Inventory = accel.Inventory{Family: f, Families: []accel.Family{f}}
	if got := statusOf(t, n.Check(), "xid"); got != pass {
		t.Errorf("a masked GPU's error: %v", got)
	}
	for _, text := range []string{
		line(79, "GPU has fallen off the bus."), "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
		"NVRM: GPU at PCI:0000:1b:00.0 has fallen off the bus",
	} {
		if got := statusOf(t, said(text).Check(), "gpu-lost"); got != fail {
			t.Errorf("%s: gpu-lost %v", text, got)
		}
	}
}

func TestLogUnreadable(t *testing.T) {
	n := said().limits(func(f *facts) { f.noLog = errors.New("/dev/kmsg: operation not permitted") })
	for _, r := range n.Check() {
		if (r.ID == "xid" || r.ID == "kernel-log") &&
			(r.Status != check.Skip || r.Reason != "kmsg-unreadable: /dev/kmsg: operation not permitted") {
			t.Errorf("%+v", r)
		}
	}
}

func TestKernelComplaints(t *testing.T) {
	for text, want := range map[string]check.Status{
		"mlx5_core 0000:0a:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).": check.Warn,
		"mlx5_core 0000:0a:00.0: Port module event[error]: module 0, Cable error, High Temperature":                     check.Warn,
		"nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing":       check.Warn,
		"mlx5_core 0000:0a:00.0: firmware version: 28.39.1002":                                                          check.Pass,
	} {
		if got := statusOf(t, said(text).Check(), "kernel-log"); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestParseKmsg(t *testing.T) {
	got, err := parseKmsg([]byte("4,1234,65000000,-;NVRM: Xid (PCI:0000:1b:00): 79, tab\\x09end\\x\n SUBSYSTEM=pci\n"), 100*time.Second)
	if d := cmp.Diff(LogLine{Age: 35 * time.Second, Text: "NVRM: Xid (PCI:0000:1b:00): 79, tab\tend\\x"}, got); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	if got, err := parseKmsg([]byte("6,1,200000000,c;later"), 100*time.Second); err != nil || got.Age != 0 {
		t.Errorf("from the future: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "6,1;x", "6,1,x,-;x", "6,1,-5,-;x", "no record"} {
		if l, err := parseKmsg([]byte(bad), time.Hour); err == nil {
			t.Errorf("%q: %+v", bad, l)
		}
	}
}

func FuzzParseKmsg(f *testing.F) {
	f.Add([]byte("4,1234,65000000,-;NVRM: Xid (PCI:0000:1b:00): 79, x\\x41\n"))
	f.Add([]byte(";;;\\xff\\x"))
	f.Fuzz(func(t *testing.T, record []byte) {
		l, err := parseKmsg(record, time.Hour)
		if err == nil && l.Age < 0 {
			t.Errorf("%+v", l)
		}
		n := said(l.Text, string(record))
		n.Check()
	})
}

func TestParseJournalAndSyslog(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	journal := fmt.Sprintf(`{"__REALTIME_TIMESTAMP":"%d","MESSAGE":"one"}
not JSON
{"__REALTIME_TIMESTAMP":"x","MESSAGE":"two"}
{"__REALTIME_TIMESTAMP":"%d","MESSAGE":[65,66]}
{"__REALTIME_TIMESTAMP":"%d","MESSAGE":{}}
`, now.Add(-time.Hour).UnixMicro(), now.UnixMicro(), now.UnixMicro())
	if d := cmp.Diff([]LogLine{{time.Hour, "one"}, {0, "AB"}}, parseJournal([]byte(journal), now)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	syslog := `Dec 31 12:00:00 host kernel: [ 12.5] two days
Jan  2 11:00:00 host kernel: an hour
2026-01-02T11:30:00.5+00:00 host kernel: half
Jan  2 11:00:00 host sshd[1]: no kernel
Jan 99 11:00:00 host kernel: no day
Jan  1 00:00:00 host kernel: before boot
short
`
	boot := now.Add(-12*time.Hour - 72*time.Hour)
	got := parseSyslog([]byte(syslog), now, boot)
	want := []LogLine{
		{48 * time.Hour, "two days"},
		{time.Hour, "an hour"},
		{30*time.Minute - 500*time.Millisecond, "half"},
		{36 * time.Hour, "before boot"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got := parseSyslog([]byte(syslog), now, now.Add(-2*time.Hour)); len(got) != 2 {
		t.Errorf("since boot: %+v", got)
	}
}

// TestReadKmsg reads this machine's log where it may be read; an ordinary file and a missing one must not confuse it.
func TestReadKmsg(t *testing.T) {
	log, err := readKmsg("/dev/kmsg")
	t.Logf("%d lines, %v", len(log.Lines), err)
	if _, err := readKmsg(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := readKmsg(t.TempDir()); err == nil {
		t.Error("a folder is no log")
	}
	path := filepath.Join(t.TempDir(), "kern.log")
	text := time.Now().Format(time.RFC3339) + " host kernel: NVRM: here\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if log, ok := readSyslog(path); !ok || len(log.Lines) != 1 || log.Lines[0].Text != "NVRM: here" {
		t.Errorf("%+v", log)
	}
	if _, ok := readSyslog(t.TempDir()); ok {
		t.Error("a folder is no log")
	}
}
