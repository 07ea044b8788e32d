package packages

import (
	"fmt"
	"regexp"
)

const maxLocked = 5000 // packages of a lock

// CheckLocked returns an error if a lock's packages, which others may have written, are wrong.
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

// lockedDigest matches their digests; npm's may be several.
var lockedDigest = regexp.MustCompile(`^(?:sha[0-9]{1,3}-[A-Za-z0-9+/=]+(?: |$))*$`)

// lockedName matches names and versions of packages, which terminals show.
var lockedName = regexp.MustCompile(`^[A-Za-z0-9@/._+!~-]{1,214}$`)
