package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/zalando/go-keyring"
	"golang.org/x/term"

	"github.com/unitask/unitask/internal/vault"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

func (a *app) secretCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "secret",
		Short: "Keep secrets in this system's keyring, and try where they are",
		Long: `A secret's value comes from the environment, or from where --secret NAME=SOURCE or
[secrets] in the home's config.toml says:
  env:VARIABLE                  another variable
  file:PATH, @PATH              a file, without the newline at its end
  keyring:[SERVICE/]ACCOUNT     Linux' Secret Service, or macOS' keychain; SERVICE is
                                unitask if none is given
  cmd:HELPER:WHAT               what a program prints that secretHelpers in config.toml
                                allows: pass = ["pass", "show", "{}"]`,
	}, a.secretSet(), a.secretRemove(), a.secretCheck())
}

func (a *app) secretSet() *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME",
		Short: "Put a value into the keyring: keyring:NAME",
		Long: `Set reads a value, on a terminal without showing it and else all of standard input
but the newline at its end, and puts it into the keyring, where keyring:NAME finds it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := secretName(args[0]); err != nil {
				return err
			}
			value, err := a.readValue(args[0])
			if err != nil {
				return err
			}
			if err := keyring.Set(vault.Service, args[0], value); err != nil {
				return fmt.Errorf("the keyring does not take %s: %w", args[0], err)
			}
			return nil
		},
	}
}

// readValue reads a value from the terminal, or from standard input.
func (a *app) readValue(name string) (string, error) {
	var text []byte
	var err error
	if in, ok := a.std.Stdin.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		fmt.Fprintf(a.std.Stderr, "value of %s: ", name)
		text, err = term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(a.std.Stderr)
	} else {
		text, err = io.ReadAll(io.LimitReader(a.std.Stdin, record.MaxSecrets+3))
		text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
	}
	switch {
	case err != nil:
		return "", err
	case len(text) == 0:
		return "", usage(errors.New("the value is empty"))
	case len(text) > record.MaxSecrets:
		return "", usage(fmt.Errorf("the value has more than %s", mebibytes(record.MaxSecrets)))
	}
	return string(text), nil
}

func (a *app) secretRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME",
		Short: "Take a value out of the keyring",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := secretName(args[0]); err != nil {
				return err
			}
			err := keyring.Delete(vault.Service, args[0])
			if errors.Is(err, keyring.ErrNotFound) {
				return usage(fmt.Errorf("the keyring has no %s of %s", args[0], vault.Service))
			}
			return err
		},
	}
}

func (a *app) secretCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check NAME[=SOURCE]",
		Short: "Read a secret as a run would, and say how long it is",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, source, given := strings.Cut(args[0], "=")
			if err := secretName(name); err != nil {
				return err
			}
			v, err := a.vault()
			if err != nil {
				return err
			}
			value, err := readSecret(cmd.Context(), v, name, source, given)
			if err != nil {
				return usage(err)
			}
			return a.report(map[string]any{"name": name, "bytes": len(value)}, func() {
				a.ui.line("%s is there: %s", name, count(len(value), "byte"))
			})
		},
	}
}

func secretName(name string) error {
	if rule, err := policy.ParseSecret(name); err != nil || rule.Hosts != "" {
		return usage(fmt.Errorf("%.100q is no name of a secret: letters, digits and _ only", name))
	}
	return nil
}
