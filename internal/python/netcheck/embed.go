// Package netcheck holds the program of the network check, which runs in the user's interpreter with the user's torch:
// one process per device, and one that tests the links between devices. netcheck/devicecheck drives it and documents
// the language that they speak.
package netcheck

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed *.py
var files embed.FS

// main is the file that Python is told to run; it imports the others, which lie beside it.
const main = "muster_check.py"

// Write puts the program into dir, which exists, and returns the path of the script to run.
func Write(dir string) (string, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), text, 0o600); err != nil {
			return "", fmt.Errorf("cannot write the check program: %w", err)
		}
	}
	return filepath.Join(dir, main), nil
}

// HideTorch puts a torch beside the program that cannot be imported, and fails as one that is not there. Python looks
// there first.
func HideTorch(dir string) error {
	const absent = "raise ModuleNotFoundError(\"No module named 'torch' (a rehearsal: no-torch)\", name=\"torch\")\n"
	if err := os.WriteFile(filepath.Join(dir, "torch.py"), []byte(absent), 0o600); err != nil {
		return fmt.Errorf("cannot write the check program: %w", err)
	}
	return nil
}
