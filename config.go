package unitask

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask/audit/webhook"
)

// ConfigFile is a home's configuration file, in TOML; it may be missing. Its keys are offline
// (Options.Offline), requireJail (Options.RequireJail), and tables of webhook (Webhooks).
const ConfigFile = "config.toml"

type config struct {
	Offline     bool           `toml:"offline"`
	RequireJail []string       `toml:"requireJail"`
	Webhook     []webhook.Hook `toml:"webhook"`
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

// Webhooks are those that a home's configuration names, checked. Their secrets are in that file, so it
// must be its user's alone.
func Webhooks(home string) ([]webhook.Hook, error) {
	c, err := readConfig(home)
	if err != nil || len(c.Webhook) == 0 {
		return nil, err
	}
	name := filepath.Join(home, ConfigFile)
	if st, err := os.Stat(name); err != nil || st.Mode().Perm()&0o077 != 0 {
		return nil, cmp.Or(err, fmt.Errorf("read %s: it has the secrets of webhooks, and others can read it: chmod 600", name))
	}
	if err := webhook.Check(c.Webhook); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return c.Webhook, nil
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
