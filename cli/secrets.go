package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/vault"
	"github.com/unitask/unitask/policy"
)

// readSecrets reads the value of each secret, NAME[@HOST,…][=SOURCE]. The source is the given one, else that of the
// home's configuration, else the environment. hosts contains the hosts of bound secrets.
func (a *app) readSecrets(ctx context.Context, list []string) (values map[string]string, hosts map[string][]string,
	err error) {
	values, hosts = map[string]string{}, map[string][]string{}
	if len(list) == 0 {
		return values, hosts, nil
	}
	v, err := a.vault()
	if err != nil {
		return nil, nil, err
	}
	for _, s := range list {
		secret, source, given := strings.Cut(s, "=")
		rule, err := policy.ParseSecret(secret)
		name := rule.Name
		if err != nil {
			shown, login, _ := strings.Cut(secret, "@")
			if at := strings.LastIndexByte(login, '@'); at >= 0 {
				secret = shown + "@" + login[at+1:]
			}
			return nil, nil, fmt.Errorf("--secret %s: %w", secret, err)
		}
		if _, twice := values[name]; twice {
			return nil, nil, fmt.Errorf("--secret %s: %s is given twice: NAME@HOST,HOST has several hosts", secret, name)
		}
		if bound := rule.Bound(); bound != nil {
			hosts[name] = bound
		}
		if values[name], err = readSecret(ctx, v, name, source, given); err != nil {
			return nil, nil, fmt.Errorf("--secret %s: %w", name, err)
		}
	}
	return values, hosts, nil
}

// readSecret reads a secret from a source, if one is given.
func readSecret(ctx context.Context, v *vault.Vault, name, source string, given bool) (string, error) {
	if !given {
		return v.Value(ctx, name)
	}
	if file, short := strings.CutPrefix(source, "@"); short {
		source = "file:" + file
	}
	if kind, _, _ := strings.Cut(source, ":"); kind != "file" && kind != "env" && kind != "keyring" && kind != "cmd" {
		// not quoted: it may be the value itself, which is already in the process list
		return "",
			fmt.Errorf(
				"what follows = is no source: use --secret %s with the value in the environment, or --secret %s=@FILE, "+
					"or behind the = %s", name, name, vault.Sources)
	}
	return v.Read(ctx, source)
}

// vault returns the home's configuration of where secrets are.
func (a *app) vault() (*vault.Vault, error) {
	home, err := a.homeFolder()
	if err != nil {
		return nil, err
	}
	return unitask.Vault(home)
}
