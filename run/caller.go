package run

import (
	"os"
	"os/user"
	"strconv"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// LocalOwner returns the owner of a local user's runs: "local:" and the user's name, or the uid
// if it has no name. Callers with a token never have such a name.
func LocalOwner(uid int) string {
	name := strconv.Itoa(uid)
	if u, err := user.LookupId(name); err == nil && u.Username != "" {
		name = u.Username
	}
	return LocalOwnerPrefix + name
}

// LocalOwnerPrefix is the prefix of owners that are local users.
const LocalOwnerPrefix = "local:"

// WithDefaults fills in what the caller left out: every run has an owner.
func (c Caller) WithDefaults() Caller {
	if c.Name == "" {
		c.Name = LocalOwner(os.Geteuid())
	}
	if c.Via == "" {
		c.Via = ViaAPI
	}
	return c
}

// Caller identifies whom a run is for, where one runtime serves several callers. The same name
// is used everywhere: a ceiling's [principals.NAME] table narrows its policy, records have it
// as their owner, and logs as the caller.
type Caller struct {
	// Name goes into the record as its owner; "" is the user of this process
	// (LocalOwner).
	Name string
	// Via goes into the record: how the run was requested; "" is ViaAPI.
	Via record.Via
	// Ceiling limits what the caller gets; nil is no limit.
	Ceiling *policy.Ceiling
	// Origin is where a ceiling would come from if Ceiling is nil for want of a file: there a session looks again.
	Origin *policy.Origin
}

// CeilingOrigin is where the ceiling comes from; nil where only the program that made it can make it again.
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

// CeilingPath names the ceiling's file, "" where there is none.
func (c Caller) CeilingPath() string {
	if c.Ceiling == nil {
		return ""
	}
	return c.Ceiling.Path
}
