// Package signing signs lists of digests with a key of the home, and checks such signatures. The list has the format of
// sha256sum, the signature that of OpenSSH (ssh-keygen -Y sign). So both are checked without unitask, too.
//
// It reads no record and decides nothing about a run: package cli calls it.
package signing

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/regular"
)

// Namespace is the namespace of the signatures: one that was made for another purpose does not count.
const Namespace = "unitask"

// Identity is the name of the home's key in a file of allowed signers.
const Identity = "unitask"

// maxFile bounds a key, a signature or a file of allowed signers.
const maxFile = 1 << 20

// ErrSigner means that none of the allowed signers made a signature.
var ErrSigner = errors.New("the signature is of none of the allowed signers")

// Key returns the home's key, which is created on first use.
func Key(dir string) (ssh.Signer, error) {
	name := home.Dir(dir).SigningKey()
	lock, err := filelock.Take(home.Dir(dir).Lock("signing"))
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	text, err := regular.Read(name, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = newKey(name)
	}
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("read the key %s: %w", name, err)
	}
	return key, nil
}

func newKey(name string) ([]byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, Identity)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(block)
	return text, atomicfile.Fill(name, 0o600, func(f *os.File) error {
		_, err := f.Write(text)
		return errors.Join(err, f.Sync())
	})
}

// Signer returns the line of a key for a file of allowed signers (ssh-keygen(1)).
func Signer(key ssh.PublicKey) string { return Identity + " " + string(ssh.MarshalAuthorizedKey(key)) }

// Sign returns the signature of a text.
func Sign(key ssh.Signer, text []byte) ([]byte, error) {
	sig, err := sshsig.Sign(bytes.NewReader(text), key, sshsig.HashSHA512, Namespace)
	if err != nil {
		return nil, err
	}
	return sshsig.Armor(sig), nil
}

// Verify checks the signature of a text, and returns the name of its signer. The error is ErrSigner if the key is none
// of the signers'.
func Verify(text, signature []byte, signers []byte) (who string, err error) {
	if block, _ := pem.Decode(signature); len(signature) > maxFile || block == nil || block.Type != sshsig.PEMType {
		return "", errors.New("is no signature of ssh-keygen -Y sign")
	}
	sig, err := sshsig.Unarmor(signature)
	if err != nil {
		return "", fmt.Errorf("read the signature: %w", err)
	}
	if sig.Namespace != Namespace {
		return "", fmt.Errorf("the signature is for the namespace %.40q, and not for %q", sig.Namespace, Namespace)
	}
	if who, err = findSigner(sig.PublicKey, signers); err != nil {
		return "", err
	}
	if err := sshsig.Verify(bytes.NewReader(text), sig, sig.PublicKey, sig.HashAlgorithm, Namespace); err != nil {
		return "", fmt.Errorf("the signature is not one of this text: %w", err)
	}
	return who, nil
}

// findSigner returns the name of a key in a file of allowed signers.
func findSigner(key ssh.PublicKey, signers []byte) (who string, err error) {
	n := 0
	for lines := bufio.NewScanner(bytes.NewReader(signers)); lines.Scan(); {
		n++
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		allowed, _, options, _, err := ssh.ParseAuthorizedKey([]byte(rest))
		if err != nil {
			return "", fmt.Errorf("line %d of the allowed signers: write NAME ssh-ed25519 KEY", n)
		}
		if !bytes.Equal(allowed.Marshal(), key.Marshal()) {
			continue
		}
		if _, certified := allowed.(*ssh.Certificate); certified || strings.ContainsAny(name, "!*?,") {
			return "", fmt.Errorf("line %d of the allowed signers has a certificate or a pattern, which unitask can't check: "+
				"ssh-keygen -Y verify does", n)
		}
		if len(options) > 0 { // it limits the key to what we don't check
			return "", fmt.Errorf("line %d of the allowed signers has options, which unitask can't check: ssh-keygen -Y verify "+
				"does", n)
		}
		return name, nil
	}
	return "", ErrSigner
}

// Sum is a file with its digest, in hexadecimal.
type Sum struct{ Path, SHA256 string }

// escaped is the form of names in the lists of sha256sum.
var escaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`)

// Sums returns a list in the format of sha256sum.
func Sums(list []Sum) []byte {
	var out bytes.Buffer
	for _, s := range list {
		if name := escaped.Replace(s.Path); name != s.Path {
			fmt.Fprintf(&out, "\\%s  %s\n", s.SHA256, name)
		} else {
			fmt.Fprintf(&out, "%s  %s\n", s.SHA256, name)
		}
	}
	return out.Bytes()
}

// ParseSums reads a list in the format of sha256sum. Each path is below the list's own folder.
func ParseSums(text []byte) (list []Sum, err error) {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		if line == "" && i == len(lines)-1 {
			break
		}
		rest, odd := strings.CutPrefix(line, `\`)
		digest, name, ok := strings.Cut(rest, "  ")
		if odd {
			name, ok = unescape(name), ok && strings.ContainsRune(name, '\\')
		}
		if !ok || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" || !fs.ValidPath(name) ||
			name == "." || path.Clean(name) != name {
			return nil, fmt.Errorf("line %d is not DIGEST, two blanks, and a path", i+1)
		}
		list = append(list, Sum{name, digest})
	}
	return list, nil
}

func unescape(name string) string {
	var out strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '\\' || i+1 == len(name) {
			out.WriteByte(name[i])
			continue
		}
		i++
		switch name[i] {
		case 'n':
			out.WriteByte('\n')
		case 'r':
			out.WriteByte('\r')
		default:
			out.WriteByte(name[i])
		}
	}
	return out.String()
}
