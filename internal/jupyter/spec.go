package jupyter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/regular"
	"github.com/unitask/unitask/internal/userdir"
)

// Spec is a kernel as Jupyter finds it: the file kernel.json in a folder with the kernel's name.
type Spec struct {
	Args      []string          `json:"argv"`
	Display   string            `json:"display_name"`
	Language  string            `json:"language"`
	Interrupt string            `json:"interrupt_mode"`
	Metadata  map[string]string `json:"metadata"`
}

// specFile is the name of a kernel's file, and madeBy the member of its metadata that says that it is ours.
const (
	specFile = "kernel.json"
	madeBy   = "unitask"
	maxSpec  = 1 << 20 // bytes of such a file
)

// NewSpec returns a kernel that starts a program, which gets the connection file as its last argument.
func NewSpec(display string, args ...string) Spec {
	return Spec{Args: append(slices.Clone(args), "{connection_file}"), Display: display, Language: "python",
		Interrupt: "message", Metadata: map[string]string{madeBy: "kernel"}}
}

// UserKernels returns the folder of the user's kernels, as Jupyter finds it.
func UserKernels() (string, error) {
	if dir := os.Getenv("JUPYTER_DATA_DIR"); dir != "" {
		return filepath.Join(dir, "kernels"), nil
	}
	home, err := userdir.Home()
	if err != nil {
		return "", err
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Jupyter", "kernels"), nil
	}
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "jupyter", "kernels"), nil
	}
	return filepath.Join(home, ".local", "share", "jupyter", "kernels"), nil
}

// PrefixKernels returns the folder of kernels below a prefix, as a virtual environment of Python's.
func PrefixKernels(prefix string) string { return filepath.Join(prefix, "share", "jupyter", "kernels") }

var specName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

// CheckName returns an error if Jupyter would not take a kernel's name.
func CheckName(name string) error {
	if !specName.MatchString(name) || name == "." || name == ".." {
		return fmt.Errorf("name %.80q: must be 1 to 64 letters, digits, dots, dashes and underscores", name)
	}
	return nil
}

// ErrForeign means that a kernel is not of unitask.
var ErrForeign = errors.New("is a kernel that unitask did not install")

// Install writes a kernel into a folder of kernels, in the place of one of ours. It returns the kernel's folder.
func Install(kernels, name string, spec Spec) (dir string, err error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	dir = filepath.Join(kernels, name)
	if _, err := readSpec(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return "", err
	}
	mode := fs.FileMode(0o644)
	if slices.ContainsFunc(spec.Args, func(arg string) bool { return strings.HasPrefix(arg, "--env=") }) {
		mode = 0o600 // values may be tokens
	}
	return dir, atomicfile.Write(filepath.Join(dir, specFile), append(text, '\n'), mode)
}

// Installed is one of our kernels in a folder.
type Installed struct {
	Name string `json:"name"`
	Dir  string `json:"dir"`
	Spec
}

// readSpec reads one of our kernels.
func readSpec(dir string) (one Installed, err error) {
	text, err := regular.Read(filepath.Join(dir, specFile), maxSpec)
	if err != nil {
		return one, err
	}
	if err := json.Unmarshal(text, &one.Spec); err != nil || one.Metadata[madeBy] == "" {
		return one, fmt.Errorf("%s: %w", dir, ErrForeign)
	}
	one.Name, one.Dir = filepath.Base(dir), dir
	return one, nil
}

// List returns our kernels in a folder of kernels.
func List(kernels string) (list []Installed, err error) {
	entries, err := os.ReadDir(kernels)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		if one, err := readSpec(filepath.Join(kernels, entry.Name())); err == nil {
			list = append(list, one)
		}
	}
	return list, nil
}

// Remove removes one of our kernels.
func Remove(kernels, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	one, err := readSpec(filepath.Join(kernels, name))
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(one.Dir, specFile)); err != nil {
		return err
	}
	return os.Remove(one.Dir) // if nothing else is in it
}
