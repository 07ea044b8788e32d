package debian

import "time"

// OfFolder is OfHost with apt's configuration in another folder.
var OfFolder = ofFolder

// Verify checks a signed InRelease file at a time.
func Verify(a *Archive, signed []byte, suite string, now time.Time) error {
	_, err := a.verify(signed, suite, now)
	return err
}
