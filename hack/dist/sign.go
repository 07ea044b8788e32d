package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"aead.dev/minisign"

	"github.com/unitask/unitask/internal/selfupdate"
)

// publisher signs a release. Without a secret key nothing is signed. Without a public key, programs can't update
// themselves.
type publisher struct {
	public string
	key    *minisign.PrivateKey
}

// passwordVariable is the environment's variable with the password of the secret key.
const passwordVariable = "UNITASK_SIGN_PASSWORD"

// openKey reads a secret key as `minisign -G` writes it. Without one, there is at most a public key.
func openKey(name, public string) (publisher, error) {
	if name == "" {
		if public != "" {
			if err := new(minisign.PublicKey).UnmarshalText([]byte(public)); err != nil {
				return publisher{}, fmt.Errorf("public key %q: %w", public, err)
			}
		}
		return publisher{public: public}, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return publisher{}, err
	}
	key := new(minisign.PrivateKey)
	if minisign.IsEncrypted(text) {
		*key, err = minisign.DecryptKey(os.Getenv(passwordVariable), text)
	} else {
		err = key.UnmarshalText(text)
	}
	if err != nil {
		return publisher{}, fmt.Errorf("secret key %s (its password is in %s): %w", name, passwordVariable, err)
	}
	return publisher{key.Public().(minisign.PublicKey).String(), key}, nil
}

// flags are the linker's, which put the public key and the address of releases into a program.
func (p publisher) flags() string {
	if p.public == "" {
		return ""
	}
	const at = " -X github.com/unitask/unitask/internal/selfupdate."
	return at + "key=" + p.public + at + "from=" + repository + "/releases/latest/download"
}

// sign signs SHA256SUMS. The signature is the same each time: it has no date.
func (p publisher) sign(version, dir string) error {
	name := filepath.Join(dir, selfupdate.SignatureFile)
	if p.key == nil {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) { // an earlier release's
			return err
		}
		return nil
	}
	text, err := os.ReadFile(filepath.Join(dir, selfupdate.SumsFile))
	if err != nil {
		return err
	}
	signature := minisign.SignWithComments(*p.key, text, selfupdate.Comment("v"+version), "unitask's releases")
	return os.WriteFile(name, signature, 0o644)
}
