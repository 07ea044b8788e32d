package run

import (
	"os"
	"os/user"
	"strconv"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// LocalOwner returns the owner of a local user's runs: "local:" and the user's name, or the uid if the user has
// no name. Callers with a token never have such a name.
func LocalOwner(uid int) string {
	name := strconv.Itoa(uid)
	if u, err := user.LookupId(name); err == nil && u.Username != "" {
		name = u.Username
	}
	return LocalOwnerPrefix + name
}

// LocalOwnerPrefix is the prefix of owners that are local users.
const LocalOwnerPrefix = "local:"

// WithDefaults fills in fields that the caller left empty; every run has an owner.
func (c Caller) WithDefaults() Caller {
	if c.Name == "" {
		c.Name = LocalOwner(os.Geteuid())
	}
	if c.Via == "" {
		c.Via = ViaAPI
	}
	return c
}

// Caller identifies whom a run is for, if one runtime serves several callers. The same name is used everywhere: a
// ceiling's [principals.NAME] table narrows the caller's policy, records name the caller as owner, and logs as
// caller.
type Caller struct {
	// Name is the owner in the record; "" means the user of this process (LocalOwner).
	Name string
	// Via tells in the record how the run was requested; "" means ViaAPI.
	Via record.Via
	// Ceiling limits the caller's grants; nil means no limit.
	Ceiling *policy.Ceiling
	// HostDir is the caller's working folder on this host, "" if it has none here. Hints look for files below it, if the
	// code's working folder has the same path.
	HostDir string
	// Origin tells where to look again for a ceiling if no file provided one; Ceiling is then nil.
	Origin *policy.Origin
}

// CeilingOrigin returns where the ceiling was read; nil if only the program that made the ceiling can make it
// again.
func (c Caller) CeilingOrigin() *policy.Origin {
	if c.Ceiling == nil {
		return c.Origin
	}
	return c.Ceiling.Origin()
}

// How a run was requested.
const (
	ViaCLI  = record.ViaCLI
	ViaMCP  = record.ViaMCP
	ViaHTTP = record.ViaHTTP
	ViaAPI  = record.ViaAPI
)

// CeilingPath returns the ceiling's file, "" if there is none.
func (c Caller) CeilingPath() string {
	if c.Ceiling == nil {
		return ""
	}
	return c.Ceiling.Path
}
