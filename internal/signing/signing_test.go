package signing

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// The key stays, its signature is good, and OpenSSH and coreutils take both files.
func TestSign(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	key, err := Key(home)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Key(home)
	if err != nil || !bytes.Equal(key.PublicKey().Marshal(), again.PublicKey().Marshal()) {
		t.Fatalf("another key the second time: %v", err)
	}
	if st, err := os.Stat(filepath.Join(home, "signing.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode is %v, %v", st.Mode(), err)
	}
	odd := "a\\b\nc"
	list := []Sum{{"plain", strings.Repeat("0", 64)}, {odd,
		"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}}
	text := Sums(list)
	if got, err := ParseSums(text); err != nil || !slices.Equal(got, list) {
		t.Errorf("got %q, %v", got, err)
	}
	sig, err := Sign(key, text)
	if err != nil {
		t.Fatal(err)
	}
	signers := Signer(key.PublicKey())
	if who, err := Verify(text, sig, []byte("# ours\n\n"+signers)); err != nil || who != Identity {
		t.Errorf("got %q, %v", who, err)
	}
	for name, data := range map[string]string{"signers": signers, "sig": string(sig), odd: "abc",
		"sums": string(Sums(list[1:]))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen")
	}
	cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", "signers", "-I", Identity, "-n", Namespace, "-s", "sig")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("ssh-keygen: %v: %s", err, out)
	}
	cmd = exec.Command("sha256sum", "-c", "sums")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v: %s", err, out)
	}
}

// Nothing but the signed text, with a signature of an allowed key for our namespace, is accepted.
func TestAttackSignature(t *testing.T) {
	key, err := Key(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	other, err := Key(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("text")
	sig, err := Sign(key, text)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := Sign(other, text)
	if err != nil {
		t.Fatal(err)
	}
	ours := []byte(Signer(key.PublicKey()))
	limited := []byte(strings.Replace(string(ours), " ", ` namespaces="git" `, 1))
	const refused = "refused"
	for name, c := range map[string]struct{ text, sig, signers []byte }{
		"another text":          {[]byte("texts"), sig, ours},
		"another key":           {text, foreign, ours},
		"no signers":            {text, sig, nil},
		"a key with options":    {text, sig, limited},
		"a pattern for a name":  {text, sig, []byte("!me,*" + strings.TrimPrefix(string(ours), Identity))},
		"an empty signature":    {text, nil, ours},
		"a truncated signature": {text, sig[:len(sig)/2], ours},
		"a key in its place":    {text, ours, ours},
		"signers that are none": {text, sig, []byte("unitask")},
	} {
		got := refused
		if _, err := Verify(c.text, c.sig, c.signers); err == nil {
			got = "accepted"
		}
		attack.Check(t, "a signature: "+name, refused, got)
	}
	if _, err := Verify(text, foreign, ours); !errors.Is(err, ErrSigner) {
		t.Errorf("got %v", err)
	}
	zeros := strings.Repeat("0", 64)
	for _, list := range []string{zeros + "  ../f\n", zeros + "  /etc/passwd\n", zeros + "  a/../../f\n", zeros + " f\n",
		"00  f\n", zeros + "  \n", zeros + "  .\n", strings.Repeat("A", 64) + "  f\n", "\n", "f\n"} {
		got := refused
		if _, err := ParseSums([]byte(list)); err == nil {
			got = "accepted"
		}
		attack.Check(t, "a list of digests with "+strings.TrimPrefix(strings.TrimSpace(list), zeros), refused, got)
	}
}

func FuzzParseSums(f *testing.F) {
	f.Add(Sums([]Sum{{"a\nb", strings.Repeat("0", 64)}}))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseSums(text)
		if err != nil {
			return
		}
		again, err := ParseSums(Sums(list))
		if err != nil || !slices.Equal(list, again) {
			t.Errorf("%q, then %q: %v", list, again, err)
		}
	})
}
