package mcp

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// askSecrets adds a call's secrets to a request, without their values. The policy denies by name, and does not disclose
// whether there is such a secret.
func askSecrets(req *unitask.Request, asked []string) error {
	for _, text := range asked {
		secret, err := policy.ParseSecret(text)
		if err != nil {
			return fmt.Errorf("secret %.100q %w", text, err)
		}
		name := secret.Name
		if req.Secrets == nil {
			req.Secrets, req.SecretHosts = map[string]string{}, map[string][]string{}
		}
		if _, twice := req.Secrets[name]; twice {
			return fmt.Errorf("secret %s is asked for twice: NAME@HOST,HOST has several hosts", name)
		}
		if bound := secret.Bound(); bound != nil {
			req.SecretHosts[name] = bound
		}
		req.Secrets[name] = rand.Text()
	}
	return nil
}

// readSecrets adds the values to a request of a caller, who is known by names, as far as its ceiling allows. A
// keyring and a helper program need time, so the caller already has its slot in the queue.
func (s *Server) readSecrets(ctx context.Context, caller unitask.Caller, names []string, req *unitask.Request) error {
	for name := range req.Secrets {
		if !caller.Ceiling.Secret(name) {
			continue
		}
		value, err := s.opts.Vault.Value(ctx, name, names...)
		if err != nil && remote(caller) { // the error would reveal where secrets are stored
			s.opts.Log.Warn("secret", "caller", caller.Name, "name", name, "error", err)
			return fmt.Errorf("secret %s: the server can't read it; its log says why", name)
		}
		if err != nil {
			return fmt.Errorf("secret %s: %w", name, err)
		}
		req.Secrets[name] = value
	}
	return nil
}
