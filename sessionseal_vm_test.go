package unitask_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/machine"
)

// checkNoAuthorityKey searches all files of a paused session for the key of its authority, in any form.
func checkNoAuthorityKey(t *testing.T, home, id string) {
	t.Helper()
	folder := filepath.Join(home, "sessions", id)
	text, err := os.ReadFile(filepath.Join(folder, machine.PauseFile))
	if err == nil {
		text, err = unitask.OpenPaused(home, text)
	}
	var p struct {
		Note struct{ Broker struct{ Authority []byte } }
	}
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		t.Fatal(err)
	}
	plain := p.Note.Broker.Authority
	pair, err := tls.X509KeyPair(plain, plain)
	if err != nil {
		t.Fatal(err)
	}
	key := pair.PrivateKey.(*ecdsa.PrivateKey)
	scalar, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	forms := map[string][]byte{
		"bytes": scalar, "hex": []byte(hex.EncodeToString(scalar)),
		"PKCS #8 in base64":   []byte(base64.StdEncoding.EncodeToString(pkcs8)[:60]),
		"all of it in base64": []byte(base64.StdEncoding.EncodeToString(plain)[:200]), "PEM": []byte("PRIVATE KEY"),
		"PEM in base64 at 0": []byte("UFJJVkFURSBLRV"), "PEM in base64 at 1": []byte("BSSVZBVEUgS0VZ"),
		"PEM in base64 at 2": []byte("QUklWQVRFIEtFW"),
	}
	files, err := os.ReadDir(folder)
	if err != nil || len(files) < 2 {
		t.Fatalf("%v %v", files, err)
	}
	for name, form := range forms {
		found := []string{}
		for _, f := range files {
			if f.Name() != machine.PauseFile && len(form) < 32 { // kernels and libraries contain such words
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, form) {
				found = append(found, f.Name())
			}
		}
		attack.Check(t, "who reads a paused session's files looks for its authority's key, as "+name, "[]", fmt.Sprint(found))
	}
}
