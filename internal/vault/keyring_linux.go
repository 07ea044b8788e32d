package vault

import (
	"fmt"

	"github.com/godbus/dbus/v5"
	ss "github.com/zalando/go-keyring/secret_service"
)

const (
	lockedProperty     = "org.freedesktop.Secret.Collection.Locked"
	attributesProperty = "org.freedesktop.Secret.Item.Attributes"
)

// listKeyring returns the accounts under our service in the collection that the keyring library reads. With mayAsk it
// has the keyring ask a person to unlock it.
func listKeyring(mayAsk bool) (accounts []string, err error) {
	service, err := ss.NewSecretService()
	if err != nil {
		return nil, noService(err)
	}
	collection := service.GetLoginCollection()
	locked, err := collection.GetProperty(lockedProperty)
	if err != nil {
		return nil, noService(err)
	}
	if locked.Value() != false {
		if !mayAsk {
			return nil, errLocked
		}
		if err := service.Unlock(collection.Path()); err != nil {
			return nil, fmt.Errorf("%w: %w", errLocked, err)
		}
	}
	items, err := service.SearchItems(collection, map[string]string{"service": Service})
	if err != nil {
		return nil, fmt.Errorf("the keyring finds nothing: %w", err)
	}
	for _, item := range items[:min(len(items), maxAccounts+1)] {
		value, err := service.Object("org.freedesktop.secrets", item).GetProperty(attributesProperty)
		if err != nil {
			return accounts, fmt.Errorf("the keyring does not describe an entry: %w", err)
		}
		var attributes map[string]string
		if err := dbus.Store([]any{value.Value()}, &attributes); err != nil {
			return accounts, fmt.Errorf("the keyring does not describe an entry: %w", err)
		}
		if account := attributes["username"]; account != "" {
			accounts = append(accounts, account)
		}
	}
	return accounts, nil
}

func noService(err error) error {
	return fmt.Errorf("no keyring answers here (%w): "+
		"start one in this login session, as GNOME Keyring, KWallet or KeePassXC", err)
}
