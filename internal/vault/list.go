package vault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Entry is the name of a secret and where its value is kept.
type Entry struct {
	Name   string `json:"name"`
	Source string `json:"source"`
	Caller string `json:"caller,omitempty"` // whose runs alone get it
	// InConfig means that the configuration sets the source: else a request must name it.
	InConfig bool `json:"inConfig"`
}

// Configured returns the secrets that the configuration has a source for.
func (v *Vault) Configured() (list []Entry) {
	add := func(caller string, sources map[string]string) {
		for name, source := range sources {
			list = append(list, Entry{Name: name, Source: source, Caller: caller, InConfig: true})
		}
	}
	add("", v.Secrets)
	for caller, sources := range v.Callers {
		add(caller, sources)
	}
	slices.SortFunc(list, compareEntries)
	return list
}

func compareEntries(a, b Entry) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Caller, b.Caller),
		strings.Compare(a.Source, b.Source))
}

// List returns the secrets that the configuration has a source for, and those of the keyring under our service. It
// reads no value. unlisted is why entries of the keyring are missing.
func (v *Vault) List(ctx context.Context) (list []Entry, unlisted error) {
	list = v.Configured()
	accounts, unlisted := accountsInKeyring(ctx, true)
	for _, account := range accounts {
		e := Entry{Name: account, Source: keyringSource(account)}
		if source := v.Secrets[account]; source != e.Source && source != "keyring:"+Service+"/"+account {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, compareEntries)
	return list, unlisted
}

// Accounts returns the keyring's accounts under our service, if it gives them without asking anybody.
func Accounts(ctx context.Context) []string {
	accounts, _ := accountsInKeyring(ctx, false)
	return accounts
}

// keyringSource returns the source that reads an account of our service.
func keyringSource(account string) string {
	if strings.Contains(account, "/") {
		account = Service + "/" + account
	}
	return "keyring:" + account
}

// maxAccounts bounds how many accounts are listed.
const maxAccounts = 1000

// accountsInKeyring waits for the keyring as long as the context lets it, and at most Patience.
func accountsInKeyring(ctx context.Context, mayAsk bool) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("the keyring gave no answer within %s", Patience))
	defer cancel()
	type answer struct {
		accounts []string
		err      error
	}
	if !mayAsk && os.Getenv("DBUS_SESSION_BUS_ADDRESS") == "" { // the library would start a bus
		return nil, errLocked
	}
	came := make(chan answer, 1) // the library has no context
	go func() {
		accounts, err := listKeyring(mayAsk)
		came <- answer{accounts, err}
	}()
	select {
	case a := <-came:
		slices.Sort(a.accounts)
		if a.accounts = slices.Compact(a.accounts); len(a.accounts) > maxAccounts && a.err == nil {
			a.accounts, a.err = a.accounts[:maxAccounts], fmt.Errorf("the keyring has more than %d entries of %s: "+
				"remove some with `unitask secret rm`", maxAccounts, Service)
		}
		return a.accounts, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// errLocked means that somebody must unlock the keyring first.
var errLocked = errors.New("the keyring is locked: unlock it")
