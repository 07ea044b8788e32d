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
	}, a.secretSet(), a.secretRemove(), a.secretCheck(), a.secretList())
}

func (a *app) secretList() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the names of secrets, and where their values are kept",
		Long: `List the names that config.toml has a source for, and the keyring's entries that
secret set has made. It reads no value. The environment is not in the list: any variable
may be a secret of its name.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := a.vault()
			if err != nil {
				return err
			}
			list, unlisted := v.List(cmd.Context())
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			answer := listedSecrets{Secrets: append([]vault.Entry{}, list...)}
			answer.Keyring.Listed = unlisted == nil
			if unlisted != nil {
				answer.Keyring.Error = unlisted.Error()
			}
			return a.report(answer, func() {
				var rows [][]string
				for _, e := range list {
					rows = append(rows, []string{safe(e.Name), safe(e.Source), usedBy(e)})
				}
				a.ui.table("NAME|KEPT IN|GIVEN TO", rows)
				if unlisted != nil {
					a.ui.note("the list lacks entries: %s", safe(unlisted.Error()))
				}
			})
		},
	}
}

// listedSecrets is what secret ls prints with --json.
type listedSecrets struct {
	Secrets []vault.Entry `json:"secrets"`
	Keyring struct {
		Listed bool   `json:"listed"`          // all of its entries
		Error  string `json:"error,omitempty"` // why not
	} `json:"keyring"`
}

// usedBy says which runs get a secret.
func usedBy(e vault.Entry) string {
	switch {
	case e.Caller != "":
		return "--secret " + safe(e.Name) + " of " + safe(e.Caller)
	case e.InConfig:
		return "--secret " + safe(e.Name)
	case secretName(e.Name) != nil:
		return "--secret NAME=" + safe(e.Source)
	}
	return "--secret " + safe(e.Name) + "=" + safe(e.Source)
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
		Use:               "rm NAME",
		Short:             "Take a value out of the keyring",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSecret,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := secretName(args[0]); err != nil {
				return err
			}
			err := keyring.Delete(vault.Service, args[0])
			if errors.Is(err, keyring.ErrNotFound) {
				return hint(usage(fmt.Errorf("the keyring has no %s of %s", args[0], vault.Service)), "unitask secret ls")
			}
			if err != nil {
				return fmt.Errorf("the keyring does not remove %s: %w", args[0], err)
			}
			return nil
		},
	}
}

func (a *app) secretCheck() *cobra.Command {
	return &cobra.Command{
		Use:               "check NAME[=SOURCE]",
		Short:             "Read a secret as a run would, and say how long it is",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSecret,
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
