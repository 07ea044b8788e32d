package selfupdate

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Manager is a package manager that owns a program.
type Manager struct {
	Name    string
	Update  string // the command that updates unitask
	Removal string // the command that removes it
}

const askTime = 10 * time.Second

// wheels is where pip records a wheel, seen from the folder of the programs that the wheel has installed.
const wheels = "../lib*/python*/*-packages/unitask-*.dist-info"

// managers are the package managers that unitask's packages are for, in the order in which unitask tries them. A
// manager owns a program in three cases. Its path contains inPath; a file exists at beside, relative to the program's
// folder; or the command ask succeeds with its path.
var managers = []struct {
	inPath, beside string
	ask            []string
	Manager
}{
	{"/nix/store/", "", nil, Manager{"Nix", "nix profile upgrade unitask", "nix profile remove unitask"}},
	{"/Cellar/", "", nil, Manager{"Homebrew", "brew upgrade unitask", "brew uninstall unitask"}},
	{"/_npx/", "", nil, Manager{"npx", "npx -y unitask@latest", "npm cache npx rm"}},
	{"/node_modules/", "", nil, Manager{"npm", "npm install unitask@latest", "npm uninstall unitask"}},
	{"/uv/archive-v", "", nil, Manager{"uvx", "uvx unitask@latest", "uv cache clean unitask"}},
	{"/uv/tools/", "", nil, Manager{"uv", "uv tool upgrade unitask", "uv tool uninstall unitask"}},
	{"/pipx/", "", nil, Manager{"pipx", "pipx upgrade unitask", "pipx uninstall unitask"}},
	{"", wheels, nil, Manager{"pip", "pip install --upgrade unitask", "pip uninstall unitask unitask-parts"}},
	{"", "", []string{"dpkg", "-S"},
		Manager{"apt", "apt install --only-upgrade unitask", "apt remove unitask unitask-parts"}},
	{"", "", []string{"rpm", "-qf"}, Manager{"dnf", "dnf upgrade unitask", "dnf remove unitask unitask-parts"}},
}

var quoteGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// Owner returns the package manager that installed a program; ok is false if none did.
func Owner(ctx context.Context, program string) (m Manager, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for _, m := range managers {
		there := m.inPath != "" && strings.Contains(program, m.inPath)
		if m.beside != "" {
			found, _ := filepath.Glob(filepath.Join(quoteGlob.Replace(filepath.Dir(program)), m.beside))
			there = len(found) > 0
		}
		if m.ask != nil {
			there = claims(ctx, append(slices.Clone(m.ask), program))
		}
		if there {
			return m.Manager, true
		}
	}
	return Manager{}, false
}

// claims reports whether a package manager's command succeeds. A command that does not end in time counts as success,
// so that the program is not touched.
func claims(ctx context.Context, command []string) bool {
	if _, err := exec.LookPath(command[0]); err != nil {
		return false
	}
	err := exec.CommandContext(ctx, command[0], command[1:]...).Run()
	return err == nil || ctx.Err() != nil
}
