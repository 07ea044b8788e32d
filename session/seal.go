package session

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/unitask/unitask/internal/atomicfile"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/machine"
)

// The key of a session's certificate authority is never on the disk unencrypted. For a paused session it is sealed with
// a key of the home. With a copy of the session's folder alone, nobody can impersonate the hosts that its guest trusts.

// pauseKeySize is the key's size: of AES-256.
const pauseKeySize = 32

// sealedMark begins a sealed authority. Pauses of older versions have PEM instead.
const sealedMark = "sealed 1\n"

// pauseKey reads the key of a home, and creates it on first use.
func pauseKey(home string) ([]byte, error) {
	name := layout.Dir(home).PauseKey()
	key, err := readPauseKey(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makePauseKey(home, name); err == nil {
			key, err = readPauseKey(name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the key of paused sessions: %w", err)
	}
	return key, nil
}

// makePauseKey creates the key, unless another process has created it.
func makePauseKey(home, name string) error {
	f, err := os.CreateTemp(home, "."+filepath.Base(name)+".*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	key := make([]byte, pauseKeySize)
	_, _ = rand.Read(key)
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := atomicfile.Place(root, filepath.Base(f.Name()), filepath.Base(name)); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func readPauseKey(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular() || st.Size() != pauseKeySize:
		return nil, fmt.Errorf("%s is not a file of %d bytes", name, pauseKeySize)
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s is open to other users (mode %04o): chmod 600", name, st.Mode().Perm())
	case int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to another user (uid %d)", name, st.Sys().(*syscall.Stat_t).Uid)
	}
	key := make([]byte, pauseKeySize)
	_, err = io.ReadFull(f, key)
	return key, err
}

func pauseCipher(home string) (cipher.AEAD, error) {
	key, err := pauseKey(home)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// sealAuthority seals the broker's certificate authority of a session.
func sealAuthority(home, session string, plain []byte) ([]byte, error) {
	aead, err := pauseCipher(home)
	if err != nil {
		return nil, err
	}
	return aead.Seal([]byte(sealedMark), nil, plain, []byte(session)), nil
}

// openAuthority opens a sealed authority. It returns an unsealed one of an older version unchanged.
func openAuthority(home, session string, kept []byte) ([]byte, error) {
	sealed, is := bytes.CutPrefix(kept, []byte(sealedMark))
	if !is {
		return kept, nil
	}
	aead, err := pauseCipher(home)
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, nil, sealed, []byte(session))
	if err != nil {
		return nil, fmt.Errorf(
			"session %s was not sealed by the key in %s: it can't continue here",
			session,
			layout.Dir(home).PauseKey(),
		)
	}
	return plain, nil
}

// OpenPaused returns the description (machine.PauseFile) of a home's paused session for another home, as input to
// SealPaused. It contains the key of the session's authority unencrypted: never write it to a disk.
func OpenPaused(home string, text []byte) ([]byte, error) {
	return changeAuthority(
		text,
		func(session string, kept []byte) ([]byte, error) { return openAuthority(home, session, kept) },
	)
}

// SealPaused returns the description of a paused session for a home, from the result of OpenPaused.
func SealPaused(home string, text []byte) ([]byte, error) {
	return changeAuthority(text, func(session string, kept []byte) ([]byte, error) {
		if bytes.HasPrefix(kept, []byte(sealedMark)) {
			return kept, nil // openAuthority checks by which key
		}
		return sealAuthority(home, session, kept)
	})
}

// changeAuthority changes the authority in a description. It leaves anything else unchanged: a later reader
// reports faults.
func changeAuthority(text []byte, change func(session string, kept []byte) ([]byte, error)) ([]byte, error) {
	var p machine.Pause
	var k paused.Note
	if json.Unmarshal(text, &p) != nil || json.Unmarshal(p.Note, &k) != nil || k.Broker == nil {
		return text, nil
	}
	var err error
	if k.Broker.Authority, err = change(k.ID, k.Broker.Authority); err != nil {
		return nil, err
	}
	if p.Note, err = json.Marshal(k); err != nil {
		return nil, err
	}
	return json.Marshal(p)
}
