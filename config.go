package unitask

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/BurntSushi/toml"
)

// ConfigFile is a home's configuration file, in TOML; it may be missing. Its keys are offline
// (Options.Offline) and requireJail (Options.RequireJail).
const ConfigFile = "config.toml"

type config struct {
	Offline     bool     `toml:"offline"`
	RequireJail []string `toml:"requireJail"`
}

func readConfig(home string) (c config, err error) {
	name := filepath.Join(home, ConfigFile)
	meta, err := toml.DecodeFile(name, &c)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read %s: %w", name, err)
	}
	if extra := meta.Undecoded(); len(extra) > 0 {
		return c, fmt.Errorf("read %s: unknown key %s", name, extra[0])
	}
	return c, nil
}

// offline says who wants that no parts are fetched, "" if they may be.
func offline(opts Options, c config) (string, error) {
	const variable = "UNITASK_OFFLINE"
	text := os.Getenv(variable)
	said, err := strconv.ParseBool(text)
	switch {
	case opts.Offline != nil && *opts.Offline:
		return "--offline", nil
	case opts.Offline != nil:
		return "", nil
	case text != "" && err != nil:
		return "", fmt.Errorf("%s is %.40q: use 1 or 0", variable, text)
	case text != "" && said:
		return variable, nil
	case text == "" && c.Offline:
		return filepath.Join(opts.Home, ConfigFile), nil
	}
	return "", nil
}
