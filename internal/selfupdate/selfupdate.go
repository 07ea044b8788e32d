// Package selfupdate replaces the program by a newer release that its publisher signed, and takes that back. It never
// takes an older release, an unsigned file, or a program that a package manager installed. Package cli calls it.
//
// A release is a folder or an address. It has SHA256SUMS, its signature SHA256SUMS.minisig, and the archives that
// hack/dist builds. The signature has minisign's format (jedisct1.github.io/minisign). Its trusted comment has the
// version, so nobody can offer an older release as a newer one.
package selfupdate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"aead.dev/minisign"
	"golang.org/x/mod/semver"
)

// key and from are the publisher's public key and the address of the newest release. hack/dist sets them.
var key, from string

const (
	// SumsFile has the digests of a release's files.
	SumsFile = "SHA256SUMS"
	// SignatureFile has the signature of SumsFile.
	SignatureFile = SumsFile + ".minisig"

	maxSums      = 64 << 10  // bytes of SumsFile
	maxSignature = 4 << 10   // bytes of SignatureFile
	maxArchive   = 256 << 20 // bytes of a release's archive
	maxProgram   = 512 << 20 // bytes of the program in it
)

// Comment returns the trusted comment of a release's signature. The version is like "v1.2.3".
func Comment(version string) string { return "unitask " + version }

// Publisher tells where releases come from, and who signs them.
type Publisher struct {
	Key  minisign.PublicKey
	From string // an address or a folder
}

// Built returns the publisher that this program was built with.
func Built() (Publisher, error) {
	if key == "" {
		return Publisher{}, errors.New("this program names no publisher whose releases it could check: " +
			"it was built from source, or its release was not signed. Update it as you installed it")
	}
	p := Publisher{From: from}
	if err := p.Key.UnmarshalText([]byte(key)); err != nil {
		return Publisher{}, fmt.Errorf("the publisher's key in this program: %w", err)
	}
	return p, nil
}

// Release is a release whose signature was right.
type Release struct {
	Version string // "v1.2.3"
	from    string
	archive string // the name of this system's archive
	digest  string
}

// Newest returns the newest release of this system.
func (p Publisher) Newest(ctx context.Context) (*Release, error) {
	sums, err := get(ctx, p.From, SumsFile, maxSums)
	if err != nil {
		return nil, err
	}
	signature, err := get(ctx, p.From, SignatureFile, maxSignature)
	if err != nil {
		return nil, err
	}
	r, err := p.read(sums, signature)
	if err != nil {
		return nil, fmt.Errorf("the release at %s: %w", p.From, err)
	}
	return r, nil
}

// read checks the signature of a release's digests, and returns the release of this system.
func (p Publisher) read(sums, signature []byte) (*Release, error) {
	if !minisign.Verify(p.Key, sums, signature) {
		return nil, fmt.Errorf("%s is not signed by this program's publisher (key %s): do not use it", SumsFile, p.Key)
	}
	var s minisign.Signature
	if err := s.UnmarshalText(signature); err != nil {
		return nil, err
	}
	version, ours := strings.CutPrefix(s.TrustedComment, "unitask ")
	if !ours || !semver.IsValid(version) {
		return nil, fmt.Errorf("%s says %.80q and not which release of unitask it is", SignatureFile, s.TrustedComment)
	}
	r := &Release{Version: version, from: p.From,
		archive: fmt.Sprintf("unitask_%s_%s_%s.tar.gz", strings.TrimPrefix(version, "v"), runtime.GOOS, runtime.GOARCH)}
	for line := range bytes.Lines(sums) {
		if digest, name, ok := strings.Cut(strings.TrimRight(string(line), "\r\n"), "  "); ok && name == r.archive {
			r.digest = digest
		}
	}
	if len(r.digest) != 64 {
		return nil, fmt.Errorf("%s has no %s: there is none for this system", version, r.archive)
	}
	return r, nil
}

// Newer reports whether the release is newer than a version. An older release is an error, and so is a prerelease
// unless this program is a prerelease. Otherwise a mirror could offer a release that was signed for a trial only.
func (r *Release) Newer(version string) (bool, error) {
	if !semver.IsValid(version) {
		return false, fmt.Errorf("this program's version is %q, which is no release's", version)
	}
	order := semver.Compare(r.Version, version)
	if order < 0 {
		return false, fmt.Errorf("the release at %s is %s, older than this program (%s): it is not taken. "+
			"unitask self rollback returns to the program before the last update", r.from, r.Version, version)
	}
	if semver.Prerelease(r.Version) != "" && semver.Prerelease(version) == "" {
		return false, fmt.Errorf("the release at %s is %s, a prerelease, which %s does not take: install it by hand", r.from,
			r.Version, version)
	}
	return order > 0, nil
}

// Program returns the path of the running program, without links.
func Program() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(self)
}
