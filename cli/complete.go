package cli

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/vault"
	"github.com/unitask/unitask/mcp"
)

// argumentValues complete arguments, by their names in a command's usage line.
var argumentValues = map[string]func(*app, context.Context) []string{
	"ID": (*app).runIDs, "RUN": (*app).runIDs, "SESSION": (*app).sessionNames, "IMAGE": (*app).imageNames,
	"LANGUAGE": func(*app, context.Context) []string { return language.WithSteps() },
	"CLIENT":   func(*app, context.Context) []string { return mcp.Clients() },
}

// flagValues complete the values of flags.
var flagValues = map[string]func(*app, context.Context) []string{
	"image": (*app).imageNames, "replay": (*app).runIDs, "run": (*app).runIDs, "attach": (*app).runIDs,
	"session": (*app).sessionNames, "secret": (*app).configuredSecrets,
	"lang":   func(*app, context.Context) []string { return language.Names() },
	"status": func(*app, context.Context) []string { return history.States() },
	"kernel": func(*app, context.Context) []string { return []string{"linux", "nanos", "auto"} },
	"arch":   func(*app, context.Context) []string { return []string{"amd64", "arm64"} },
	"accel":  func(*app, context.Context) []string { return []string{"auto", "kvm", "hvf", "tcg"} },
	"kind":   func(*app, context.Context) []string { return audit.KindNames() },
}

// maxCompleted bounds how many runs a completion offers.
const maxCompleted = 100

var argumentName = regexp.MustCompile(`[A-Z]+`)

// addCompletions makes the shell complete the arguments in usage lines, and the values of flags.
func (a *app) addCompletions(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.addCompletions(sub)
	}
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if values := flagValues[f.Name]; values != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, begin string) ([]string,
				cobra.ShellCompDirective) {
				return beginning(values(a, cmd.Context()), begin), cobra.ShellCompDirectiveNoFileComp
			})
		}
	})
	places := argumentPlaces(cmd)
	if len(places) == 0 || isGroup(cmd) || cmd.ValidArgsFunction != nil {
		return
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		at := min(len(args), len(places)-1)
		if at < len(args) && !strings.Contains(cmd.Use, "...") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		var list []string
		for _, name := range places[at] {
			for _, value := range argumentValues[name](a, cmd.Context()) {
				if !slices.Contains(args, value) {
					list = append(list, value)
				}
			}
		}
		if len(places[at]) == 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return beginning(list, begin), cobra.ShellCompDirectiveNoFileComp
	}
}

// argumentPlaces returns the completable names at each position of a usage line, up to the last position that has one.
func argumentPlaces(cmd *cobra.Command) (places [][]string) {
	last := 0
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if word == "[flags]" || strings.HasPrefix(word, "-") || strings.HasPrefix(word, "[-") || word == "N]" {
			continue
		}
		if word == "|" {
			break
		}
		var names []string
		for _, name := range argumentName.FindAllString(word, -1) {
			if argumentValues[name] != nil && !strings.Contains(word, name+":") {
				names = append(names, name)
			}
		}
		if places = append(places, names); len(names) > 0 {
			last = len(places)
		}
	}
	return places[:last]
}

func beginning(list []string, begin string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !strings.HasPrefix(s, begin) })
}

// completing opens a runtime that prints nothing; nil if that fails.
func (a *app) completing() *unitask.Runtime {
	rt, err := unitask.Open(unitask.Options{Home: a.home})
	if err != nil {
		return nil
	}
	return rt
}

func (a *app) runIDs(context.Context) (ids []string) {
	rt := a.completing()
	if rt == nil {
		return nil
	}
	defer rt.Close()
	list, _ := rt.History().List(history.Filter{Limit: maxCompleted})
	for _, run := range list {
		ids = append(ids, run.ID)
	}
	if len(ids) > 0 {
		ids = append(ids, "last")
	}
	return ids
}

func (a *app) sessionNames(ctx context.Context) (names []string) {
	answer, err := a.do(ctx, sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
	if err != nil {
		return nil
	}
	for _, s := range answer.Sessions {
		if s.Name != "" {
			names = append(names, s.Name)
		}
		names = append(names, s.ID)
	}
	return names
}

// imageNames returns the names of bundled, custom and container images.
func (a *app) imageNames(context.Context) []string {
	names := slices.Clone(language.Images())
	rt := a.completing()
	if rt == nil {
		return names
	}
	defer rt.Close()
	for _, o := range rt.Catalog().Customs() {
		names = append(names, o.Name)
	}
	containers, _ := rt.Images().Containers().List()
	for _, c := range containers {
		names = append(names, c.Names...)
	}
	return names
}

// configuredSecrets returns the names that config.toml has a source for.
func (a *app) configuredSecrets(context.Context) (names []string) {
	v, err := a.vault()
	if err != nil {
		return nil
	}
	for _, e := range v.Configured() {
		names = append(names, e.Name)
	}
	return slices.Compact(names)
}

// completingKeyring bounds how long a completion waits for the keyring.
const completingKeyring = time.Second

// completeSecret completes the name of a secret, as config.toml and the keyring have it.
func (a *app) completeSecret(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completingKeyring)
	defer cancel()
	names := append(a.configuredSecrets(ctx), vault.Accounts(ctx)...)
	names = slices.DeleteFunc(names, func(name string) bool { return secretName(name) != nil }) // others' entries
	slices.Sort(names)
	return beginning(slices.Compact(names), begin), cobra.ShellCompDirectiveNoFileComp
}
