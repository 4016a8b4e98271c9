package launch

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"muster/launch/report"
)

func readStatus(t *testing.T, path string) report.Status {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc report.Status
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&doc); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return doc
}

// glooLine is what a gloo worker says whose peer died (PyTorch 2.15.0, observed).
const glooLine = "RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:64162. This is typically caused by a " +
	"remote worker crashing."

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
