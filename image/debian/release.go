package debian

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/ulikunitz/xz"

	"github.com/unitask/unitask/internal/atomicfile"
)

// The armoured keys of Debian 13's and 12's archives, from the package debian-archive-keyring.
var (
	//go:embed keys-trixie.asc
	trixieKeys string
	//go:embed keys-bookworm.asc
	bookwormKeys string
)

// Keys returns the armoured keys of a release's archive, and "" for a release whose keys are unknown. A release is not
// trusted with the keys of a newer one. Debian signs each release with the older one's keys, too, so its name counts.
func Keys(release string) string {
	return map[string]string{"trixie": trixieKeys, "bookworm": bookwormKeys}[release]
}

// Bounds of what a mirror sends.
const (
	maxRelease = 4 << 20   // bytes of InRelease
	maxPacked  = 100 << 20 // bytes of a list of packages, packed
	maxList    = 200 << 20 // bytes of a list of packages, unpacked
)

// Index returns the newest packages of the release and of its security updates. It reads them once. A mirror without
// security updates is reported to Logf.
func (a *Archive) Index(ctx context.Context) (*Index, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.index != nil {
		return a.index, nil
	}
	if len(a.Mirrors.Main) == 0 {
		return nil, ErrNoMirror
	}
	x := newIndex()
	if err := a.first(ctx, x, a.Mirrors.Main, a.Suite, "main"); err != nil {
		return nil, err
	}
	err := a.first(ctx, x, a.Mirrors.Security, a.Suite+"-security", "main")
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		a.Logf("security updates of %s can't be read, so its packages of the last point release are used: %v", a.Suite, err)
	}
	a.index = x
	return x, nil
}

// first adds the list of the first mirror that has a suite.
func (a *Archive) first(ctx context.Context, x *Index, bases []string, suite, component string) error {
	if len(bases) == 0 {
		return ErrNoMirror
	}
	var failed []error
	for _, base := range bases {
		err := a.list(ctx, x, base, suite, component)
		if err == nil || ctx.Err() != nil {
			return err
		}
		failed = append(failed, fmt.Errorf("read the index of %s on %s: %w", suite, shown(base), err))
	}
	return errors.Join(failed...)
}

// list adds a suite's packages to the index. Its list of packages is read again when the suite has changed.
func (a *Archive) list(ctx context.Context, x *Index, base, suite, component string) error {
	var signed []byte
	err := retry(ctx, func() error {
		return a.read(ctx, base, "dists/"+suite+"/InRelease", func(r io.Reader) (err error) {
			signed, err = io.ReadAll(io.LimitReader(r, maxRelease))
			return err
		})
	})
	if err != nil {
		return err
	}
	release, err := a.verify(signed, suite, time.Now())
	if err != nil {
		return err
	}
	name := path.Join(component, "binary-"+a.Arch, "Packages.gz")
	f, ok := release.files[name]
	if !ok { // gzip is faster, but some suites have only xz
		name = strings.TrimSuffix(name, ".gz") + ".xz"
		f, ok = release.files[name]
	}
	if !ok {
		return fmt.Errorf("the release has no packages for %s", a.Arch)
	}
	if f.Size > maxPacked {
		return fmt.Errorf("the release's list of packages has %d MiB: %d are the most", f.Size>>20, maxPacked>>20)
	}
	cached := filepath.Join(a.Cache, suite+"-"+a.Arch)
	text, err := os.ReadFile(cached)
	if err != nil || digest(text) != f.SHA256 {
		if text, err = a.packages(ctx, base, suite, name, f, release.byHash); err != nil {
			return err
		}
		if err := os.MkdirAll(a.Cache, 0o700); err != nil {
			return err
		}
		if err := atomicfile.Write(cached, text, 0o600); err != nil {
			return err
		}
	}
	z, err := unpacked(name, bytes.NewReader(text))
	if err != nil {
		return err
	}
	within := &io.LimitedReader{R: z, N: maxList}
	if err := x.add(within); err != nil {
		return err
	}
	if within.N == 0 {
		return fmt.Errorf("read the list of packages: it has more than %d MiB", maxList>>20)
	}
	return nil
}

func unpacked(name string, r io.Reader) (io.Reader, error) {
	if strings.HasSuffix(name, ".xz") {
		return xz.NewReader(r)
	}
	return gzip.NewReader(r)
}

// packages fetches a suite's list of packages. The name with its digest stays valid while a mirror changes.
func (a *Archive) packages(ctx context.Context, base, suite, name string, f File, byHash bool) ([]byte, error) {
	from := path.Join("dists", suite, name)
	if byHash {
		from = path.Join("dists", suite, path.Dir(name), "by-hash/SHA256", f.SHA256)
	}
	var text bytes.Buffer
	err := retry(ctx, func() error {
		text.Reset()
		return a.read(ctx, base, from, func(r io.Reader) error { return copyExactly(&text, r, f) })
	})
	return text.Bytes(), err
}

// release is what a suite's signed file says.
type release struct {
	files  map[string]File // lists of packages, by their names below the suite
	byHash bool
}

var releaseLine = regexp.MustCompile(`^ ([0-9a-f]{64}) +([0-9]{1,12}) (\S+)$`)

// verify checks a signed InRelease file. One of the archive's keys must have signed it. It must be of this suite, and
// not too old at the given time.
func (a *Archive) verify(signed []byte, suite string, now time.Time) (release, error) {
	ring, err := openpgp.ReadArmoredKeyRing(strings.NewReader(cmp.Or(a.Keys, Keys(a.Suite))))
	if err != nil {
		return release{}, fmt.Errorf("read the archive's keys: %w", err)
	}
	block, rest := clearsign.Decode(signed)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return release{}, errors.New("the file InRelease is no signed text")
	}
	if err := checkSignatures(ring, block, now); err != nil {
		return release{}, err
	}
	r := release{files: map[string]File{}}
	fields, section := map[string]string{}, ""
	lines := bufio.NewScanner(bytes.NewReader(block.Plaintext))
	lines.Buffer(nil, maxIndexLine)
	for lines.Scan() {
		if m := releaseLine.FindStringSubmatch(lines.Text()); m != nil && section == "SHA256" {
			size, _ := strconv.ParseInt(m[2], 10, 64) // the pattern bounds it
			r.files[m[3]] = File{Path: m[3], SHA256: m[1], Size: size}
			continue
		}
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && !strings.HasPrefix(name, " ") {
			section, fields[name] = name, strings.TrimSpace(value)
		}
	}
	if err := lines.Err(); err != nil {
		return r, err
	}
	r.byHash = fields["Acquire-By-Hash"] == "yes"
	if fields["Codename"] != suite {
		return r, fmt.Errorf("the file InRelease is of the release %.40q", fields["Codename"])
	}
	if until := fields["Valid-Until"]; until != "" {
		end, err := time.Parse(time.RFC1123, until)
		if err != nil {
			return r, fmt.Errorf("the file InRelease has the malformed time %.40q", until)
		}
		if now.After(end) {
			return r, fmt.Errorf("the file InRelease was valid until %s: is the mirror, or this host's clock, behind?", until)
		}
	}
	return r, nil
}

// checkSignatures checks that one of the keys has signed a text. Debian signs with several keys at a time, of which
// some may be too old.
func checkSignatures(ring openpgp.EntityList, block *clearsign.Block, now time.Time) error {
	signatures, err := io.ReadAll(block.ArmoredSignature.Body)
	if err != nil {
		return fmt.Errorf("the file InRelease has a malformed signature: %w", err)
	}
	why := error(pgperrors.ErrUnknownIssuer)
	for _, key := range ring {
		_, err := openpgp.CheckDetachedSignature(openpgp.EntityList{key}, bytes.NewReader(block.Bytes),
			bytes.NewReader(signatures), &packet.Config{Time: func() time.Time { return now }})
		if err == nil {
			return nil
		}
		if !errors.Is(err, pgperrors.ErrUnknownIssuer) {
			why = err
		}
	}
	if errors.Is(why, pgperrors.ErrKeyExpired) || errors.Is(why, pgperrors.ErrSignatureExpired) {
		return fmt.Errorf("the file InRelease has a signature of Debian's archive that is not valid on %s: is this host's "+
			"clock right, and this unitask new enough?", now.UTC().Format(time.DateOnly))
	}
	return fmt.Errorf("the file InRelease has no signature of Debian's archive: %w", why)
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
