//go:build !linux

package vault

import "errors"

// listKeyring fails: macOS' keychain is read by the name of an entry.
func listKeyring(bool) ([]string, error) {
	return nil, errors.New("macOS' keychain gives programs no list: Keychain Access shows the entries of " + Service +
		", and `unitask secret check NAME=keyring:NAME` tries one")
}
