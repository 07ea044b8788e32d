// Package config reads a home's configuration file.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask/internal/audit/webhook"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/vault"
	"github.com/unitask/unitask/record"
)

// File is a home's configuration file, in TOML; it may be missing. Its keys are offline (Options.Offline), debianMirror
// (a mirror's address), requireJail (Options.RequireJail), tables of webhook (Webhooks) and defaults (policy.Defaults).
// The keys secrets, callerSecrets, secretHelpers and registries (Vault) say where secrets are. Tables of search are
// search backends (Search).
const File = "config.toml"

// Config is the content of the file.
type Config struct {
	Offline      bool           `toml:"offline"`
	DebianMirror string         `toml:"debianMirror"` // where parts come from; "" means the one of the host's apt
	RequireJail  []string       `toml:"requireJail"`
	Webhook      []webhook.Hook `toml:"webhook"`
	Defaults     map[string]any `toml:"defaults"` // policy.ParseDefaults

	Secrets       map[string]string            `toml:"secrets"`
	CallerSecrets map[string]map[string]string `toml:"callerSecrets"`
	SecretHelpers map[string][]string          `toml:"secretHelpers"`
	Registries    map[string]vault.Login       `toml:"registries"`

	Search map[string]SearchBackend `toml:"search"`
}

// SearchBackend is a [search.NAME] table: a server that web_search may ask.
type SearchBackend struct {
	Backend string `toml:"backend"` // its kind; "" means the table's name
	URL     string `toml:"url"`     // "" means the service's own, if the kind has one
	Key     string `toml:"key"`     // the source of its key, as for secrets
}

// Read reads the file of a home. Nobody else may be able to change it. A home without the file has the zero Config.
func Read(dir string) (c Config, err error) {
	if _, err := os.Stat(dir); err == nil {
		if err := home.Check(dir); err != nil {
			return c, err
		}
	}
	name := home.Dir(dir).Config()
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

// Mirror returns the mirror of Debian that the environment or the file names, or "".
func (c Config) Mirror() string { return cmp.Or(os.Getenv("UNITASK_DEBIAN_MIRROR"), c.DebianMirror) }

// Webhooks returns the webhooks of a home's configuration, after a check. The file contains their secrets, so only its
// user may have access to it.
func Webhooks(dir string) ([]webhook.Hook, error) {
	c, err := Read(dir)
	if err != nil || len(c.Webhook) == 0 {
		return nil, err
	}
	name := home.Dir(dir).Config()
	if st, err := os.Stat(name); err != nil || st.Mode().Perm()&0o077 != 0 {
		return nil, cmp.Or(err, fmt.Errorf("read %s: it has the secrets of webhooks, and others can read it: chmod 600",
			name))
	}
	if err := webhook.Check(c.Webhook); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return c.Webhook, nil
}

// Defaults returns the [defaults] table of a home's configuration (policy.ParseDefaults), nil if it has none. Whoever
// can write that file decides what runs get, so only its user may write it.
func Defaults(dir string) (map[string]any, error) {
	c, err := Read(dir)
	if err != nil || c.Defaults == nil {
		return nil, err
	}
	return c.Defaults, ownersAlone(home.Dir(dir).Config(), "has [defaults]")
}

// ownersAlone returns an error if others than this process's user can write a configuration; what says why that
// matters.
func ownersAlone(name, what string) error {
	st, err := os.Stat(name)
	switch {
	case err != nil:
		return err
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("read %s: it %s, and others can write it: chmod 600", name, what)
	case st.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()):
		return fmt.Errorf("read %s: it %s, and belongs to another user", name, what)
	}
	return nil
}

// Vault returns the sources of secrets in a home's configuration, after a check. secrets has a source for each name,
// and callerSecrets the same for each caller of a shared server. secretHelpers are the programs that may be asked for a
// secret. registries has the logins of registries of container images. Whoever can write that file decides what runs on
// this host, so only its user may write it.
func Vault(dir string) (*vault.Vault, error) {
	v := &vault.Vault{Most: record.MaxSecrets}
	c, err := Read(dir)
	if err != nil || len(c.Secrets)+len(c.CallerSecrets)+len(c.SecretHelpers)+len(c.Registries) == 0 {
		return v, err
	}
	v.Secrets, v.Callers, v.Helpers, v.Registries = c.Secrets, c.CallerSecrets, c.SecretHelpers, c.Registries
	name := home.Dir(dir).Config()
	if err := ownersAlone(name, "says where secrets are"); err != nil {
		return nil, err
	}
	if err := v.Check(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return v, nil
}

// Search returns the search backends of a home's configuration, by name, and the vault that reads their keys. Whoever
// can write that file decides who gets queries and keys, so only its user may write it.
func Search(dir string) (map[string]SearchBackend, *vault.Vault, error) {
	c, err := Read(dir)
	if err != nil || len(c.Search) == 0 {
		return nil, nil, err
	}
	if err := ownersAlone(home.Dir(dir).Config(), "says who is asked for searches"); err != nil {
		return nil, nil, err
	}
	v, err := Vault(dir)
	return c.Search, v, err
}

// OfflineBy returns which setting forbids fetching parts, or "" if none does.
func OfflineBy(asked *bool, dir string, c Config) (string, error) {
	const variable = "UNITASK_OFFLINE"
	text := os.Getenv(variable)
	said, err := strconv.ParseBool(text)
	switch {
	case asked != nil && *asked:
		return "--offline", nil
	case asked != nil:
		return "", nil
	case text != "" && err != nil:
		return "", fmt.Errorf("%s is %.40q: use 1 or 0", variable, text)
	case text != "" && said:
		return variable, nil
	case text == "" && c.Offline:
		return home.Dir(dir).Config(), nil
	}
	return "", nil
}
