// Package testprogram builds the unitask command for the tests of several packages.
package testprogram

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build builds the command as the Makefile does, so most of it is compiled already. It returns the program, which is in
// dir.
func Build(dir string) (string, error) {
	program := filepath.Join(dir, "unitask")
	cmd := exec.Command("go", "build", "-o", program, "github.com/unitask/unitask/cli/unitask")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build unitask: %w\n%s", err, out)
	}
	return program, nil
}
