package debian_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/unitask/unitask/image/debian"
	"github.com/unitask/unitask/internal/attack"
)

// signedBy returns a text with signatures of new keys, and the armoured keys. All keys and signatures are made at the
// time made, and the n-th key is valid for lives[n].
func signedBy(t *testing.T, text string, made time.Time, lives ...time.Duration) (keys string, signed []byte) {
	t.Helper()
	var ring bytes.Buffer
	var private []*packet.PrivateKey
	armored, err := armor.Encode(&ring, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, Time: func() time.Time { return made }}
	for _, life := range lives {
		with := *at
		with.KeyLifetimeSecs = uint32(life / time.Second)
		key, err := openpgp.NewEntity("a key", "", "", &with)
		if err == nil {
			err = key.Serialize(armored)
		}
		if err != nil {
			t.Fatal(err)
		}
		private = append(private, key.PrivateKey)
	}
	var out bytes.Buffer
	w, err := clearsign.EncodeMulti(&out, private, at)
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err != nil || w.Close() != nil || armored.Close() != nil {
		t.Fatal(err)
	}
	return ring.String(), out.Bytes()
}

const releaseText = "Codename: trixie\nSHA256:\n" +
	" 0000000000000000000000000000000000000000000000000000000000000000 1 main/binary-amd64/Packages.gz\n"

// One valid key of several is enough, in any order. An error about a time names the host's clock.
func TestSignatureTimes(t *testing.T) {
	made := time.Date(2025, 8, 9, 0, 0, 0, 0, time.UTC)
	const year = 365 * 24 * time.Hour
	for name, row := range map[string]struct {
		lives []time.Duration
		now   time.Time
		says  string
	}{
		"one":                       {[]time.Duration{8 * year}, made.Add(year), ""},
		"an expired one first":      {[]time.Duration{year, 8 * year}, made.Add(2 * year), ""},
		"an expired one last":       {[]time.Duration{8 * year, year}, made.Add(2 * year), ""},
		"all expired":               {[]time.Duration{year, year}, made.Add(20 * year), "clock"},
		"a clock years behind":      {[]time.Duration{8 * year}, made.Add(-5 * year), "not valid on 2020-08-10: is this"},
		"a clock some hours behind": {[]time.Duration{8 * year}, made.Add(-5 * time.Hour), "clock"},
	} {
		keys, signed := signedBy(t, releaseText, made, row.lives...)
		err := debian.Verify(&debian.Archive{Keys: keys}, signed, "trixie", row.now)
		if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v, want %q", name, err, row.says)
		}
	}
}

// Text that a signature does not cover has no effect.
func TestAttackClearsign(t *testing.T) {
	keys, signed := signedBy(t, releaseText+"Acquire-By-Hash: no\n", time.Now(), 0)
	text := string(signed)
	_, other := signedBy(t, strings.ReplaceAll(releaseText, "trixie", "evil"), time.Now(), 0)
	body, _, _ := strings.Cut(text, "-----BEGIN PGP SIGNATURE")
	for name, row := range map[string]struct {
		text string
		ok   bool
	}{
		"as it is":                   {text, true},
		"with CRLF":                  {strings.ReplaceAll(text, "\n", "\r\n"), true},
		"blanks at the end of lines": {strings.ReplaceAll(text, "trixie\n", "trixie \t\n"), true},
		"escaped lines":              {strings.ReplaceAll(text, "Codename", "- Codename"), true},
		"another text before":        {"Codename: evil\n" + text, true},
		"an unsigned block before":   {body + text, false},
		"another's block before":     {string(other) + text, false},
		"another's block behind":     {text + string(other), false},
		"a line in the headers":      {strings.Replace(text, "\n\n", "\nCodename: evil\n\n", 1), false},
		"a line that is escaped":     {strings.Replace(text, "Codename", "- Codename: x\nCodename", 1), false},
		// The signature names the hash.
		"another hash in the headers":   {strings.Replace(text, "Hash: ", "Hash: MD5, ", 1), true},
		"an empty line":                 {strings.Replace(text, "SHA256:\n", "SHA256:\n\n", 1), false},
		"a carriage return in the text": {strings.Replace(text, "Codename: ", "Codename: evil\r", 1), false},
		"no end":                        {text[:len(text)-10], false},
		"no signature":                  {body, false},
	} {
		err := debian.Verify(&debian.Archive{Keys: keys}, []byte(row.text), "trixie", time.Now().Add(time.Minute))
		attack.Check(t, "a signed release, "+name, map[bool]string{true: "taken", false: "refused"}[row.ok],
			map[bool]string{true: "taken", false: "refused"}[err == nil])
	}
}

// Each release has keys of its own. No release is trusted with the keys of another.
func TestKeysOfReleases(t *testing.T) {
	of := map[string]string{}
	for release, names := range map[string]string{"trixie": "(13/trixie)", "bookworm": "(12/bookworm)"} {
		ring, err := openpgp.ReadArmoredKeyRing(strings.NewReader(debian.Keys(release)))
		if err != nil || len(ring) != 3 {
			t.Fatalf("%s: %d keys, %v", release, len(ring), err)
		}
		for _, key := range ring {
			id := key.PrimaryKey.KeyIdString()
			if of[id] != "" {
				t.Errorf("%s and %s have the key %s", release, of[id], id)
			}
			of[id] = release
			for name := range key.Identities {
				if !strings.Contains(name, names) {
					t.Errorf("%s has a key of %s", release, name)
				}
			}
		}
	}
	if debian.Keys("sid") != "" || debian.Keys("") != "" {
		t.Error("an unknown release has keys")
	}
}
