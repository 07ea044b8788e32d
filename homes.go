package unitask

import (
	"github.com/unitask/unitask/internal/audit/webhook"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/internal/vault"
)

// ConfigFile is the name of a home's configuration file, in TOML, which may be missing. Its keys are offline
// (Options.Offline), requireJail (Options.RequireJail), tables of webhook (Webhooks), and the sources of secrets:
// secrets, callerSecrets, secretHelpers and registries (Vault).
const ConfigFile = config.File

// DefaultHome returns $UNITASK_HOME, or ~/.unitask.
func DefaultHome() (string, error) { return home.Default() }

// Webhooks returns the checked webhooks of a home's configuration.
func Webhooks(dir string) ([]webhook.Hook, error) { return config.Webhooks(dir) }

// Vault returns the checked sources of secrets in a home's configuration.
func Vault(dir string) (*vault.Vault, error) { return config.Vault(dir) }
