package packages

import (
	"fmt"
	"regexp"
)

const maxLocked = 5000 // packages of a lock

// CheckLocked says what is wrong with a lock's packages, which others have written.
func CheckLocked(list []Package) error {
	if len(list) > maxLocked {
		return fmt.Errorf("has %d packages", len(list))
	}
	for _, p := range list {
		if !lockedName.MatchString(p.Name) || !lockedName.MatchString(p.Version) ||
			len(p.Digest) > 4096 || !lockedDigest.MatchString(p.Digest) {
			return fmt.Errorf("has a package %.80q %.80q", p.Name, p.Version)
		}
	}
	return nil
}

// lockedDigest is what their digests are like; npm's may be several.
var lockedDigest = regexp.MustCompile(`^(?:sha[0-9]{1,3}-[A-Za-z0-9+/=]+(?: |$))*$`)

// lockedName is what names and versions of packages are like; they are shown on terminals.
var lockedName = regexp.MustCompile(`^[A-Za-z0-9@/._+!~-]{1,214}$`)
