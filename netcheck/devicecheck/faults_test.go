package devicecheck_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/netcheck/devicecheck"
)

// What an interpreter may do instead of importing torch. Each is a torch of its own for a Python without any.
func TestUnusableInterpreters(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	const plain = "/usr/bin/python3"
	for _, c := range []struct {
		name, torch string
		options     []string
		budget      time.Duration
		cause       devicecheck.Cause
		step, text  string
	}{
		{name: "no torch", cause: devicecheck.NoTorch, step: "importing torch", text: "No module named 'torch'"},
		{name: "a directory", torch: "/", cause: devicecheck.NoTorch, text: "cannot import torch"},
		{
			name: "broken", torch: `raise ImportError("libcudart.so.12: cannot open shared object file")`, cause: devicecheck.Import,
			text: "libcudart.so.12",
		},
		{name: "needs a module", torch: `import numpy_of_another_name`, cause: devicecheck.Import, text: "numpy_of_another_name"},
		{
			name: "crash", torch: `import os, sys; print("about to", "crash", file=sys.stderr); os.kill(os.getpid(), 11)`,
			cause: devicecheck.Died, text: `SIGSEGV; it printed "about to crash"`,
		},
		{name: "exit", torch: `raise SystemExit(3)`, cause: devicecheck.Died, text: "exited with status 3"},
		{
			name: "hang", torch: `import time; time.sleep(100)`, budget: 5 * time.Second, cause: devicecheck.Hung, step: "importing torch",
			text: "no answer within ",
		},
		{
			name: "garbage", torch: `import os; os.write(4, b"\x1b[31mall is well\n")`, cause: devicecheck.Garbled,
			text: `"\x1b[31mall is well"`,
		},
		{
			name: "another event", torch: `import os; os.write(4, b'{"id": 0, "event": "done"}\n')`, cause: devicecheck.Garbled,
			text: `event "done"`,
		},
		{
			name: "endless line", torch: "import os\nwhile True: os.write(4, b'x' * 10000)", cause: devicecheck.Garbled,
			text: "more than 1048576 bytes",
		},
		{
			name: "closed", torch: `import os, time; os.close(4); time.sleep(100)`, budget: 5 * time.Second, cause: devicecheck.Hung,
			text: "no answer",
		},
		{name: "child", torch: `import os
if os.fork() == 0:
    import time; time.sleep(100)
os._exit(5)`, cause: devicecheck.Died, text: "status 5"},
		{name: "no interpreter", options: []string{"--no-such-option"}, cause: devicecheck.Died, text: "status 2; it printed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			switch c.torch {
			case "":
			case "/":
				mkdir(t, filepath.Join(dir, "torch"))
			default:
				write(t, filepath.Join(dir, "torch.py"), c.torch)
			}
			// Without site there are no installed packages, but for those that PYTHONPATH names.
			python := append([]string{plain, "-S"}, c.options...)
			n := open(t, devicecheck.Config{Python: python, Devices: 1, Dir: dir, Budget: c.budget}, "PYTHONPATH="+dir)
			for range 2 { // a fresh process is no better
				results, err := n.Local(t.Context())
				want(t, err, 0, c.cause, c.step, c.text)
				if len(results) != 0 || errors.Is(err, devicecheck.ErrNoTorch) != (c.cause == devicecheck.NoTorch) {
					t.Errorf("%+v, %v", results, err)
				}
			}
			if _, err := n.Switchbox(t.Context(), []devicecheck.Pair{{0, 1}}); err == nil {
				t.Error("links were tested")
			} else {
				want(t, err, -1, c.cause, "", c.text)
			}
		})
	}
}

// hollow is a torch that has no devices and can do nothing else.
const hollow = `
__version__ = "0.0"
tensor = float32 = set_num_threads = set_default_dtype = lambda *args: None
`

// A kind of device that was asked for is not replaced by another one, and links need devices.
func TestMissingDevices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "torch.py"), hollow)
	for _, c := range []struct {
		device, local, links string
		cause                devicecheck.Cause
	}{
		{device: "musa", local: "torch finds no musa device", links: "torch finds no musa device", cause: devicecheck.Failed},
		{device: "", local: "has no attribute", links: "torch finds no accelerator", cause: devicecheck.NoDevice},
	} {
		n := open(t, devicecheck.Config{Python: []string{"/usr/bin/python3", "-S"}, Devices: 1, Device: c.device}, "PYTHONPATH="+dir)
		_, err := n.Local(t.Context())
		want(t, err, 0, devicecheck.Failed, "", c.local)
		if _, err = n.Switchbox(t.Context(), []devicecheck.Pair{{0, 1}}); err == nil {
			t.Error("it found links")
		} else {
			want(t, err, -1, c.cause, "", c.links)
		}
		if _, err := n.Switchbox(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
}

func TestInterpreterThatIsNone(t *testing.T) {
	t.Parallel()
	_, err := devicecheck.Open(t.Context(), devicecheck.Config{
		Tree: tree, Python: []string{"/nonexistent/python"}, Devices: 1, Env: func(int) []string { return nil }, Scratch: t.TempDir(),
	})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
}
