package unitask

import (
	"github.com/unitask/unitask/internal/audit/webhook"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/internal/vault"
)

// ConfigFile is a home's configuration file, in TOML; it may be missing. Its keys are offline
// (Options.Offline), requireJail (Options.RequireJail), tables of webhook (Webhooks), and where secrets
// are: secrets, callerSecrets, secretHelpers and registries (Vault).
const ConfigFile = config.File

// DefaultHome is $UNITASK_HOME, or ~/.unitask.
func DefaultHome() (string, error) { return home.Default() }

// Webhooks are those that a home's configuration names, checked.
func Webhooks(dir string) ([]webhook.Hook, error) { return config.Webhooks(dir) }

// Vault is what a home's configuration says of where secrets are, checked.
func Vault(dir string) (*vault.Vault, error) { return config.Vault(dir) }
