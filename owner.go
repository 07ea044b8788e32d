package unitask

import (
	"os"
	"os/user"
	"strconv"
)

// LocalOwner is the owner of what a user of this system runs: "local:" and the user's
// name, or its number where it has none. No caller with a token can have such a name.
func LocalOwner(uid int) string {
	name := strconv.Itoa(uid)
	if u, err := user.LookupId(name); err == nil && u.Username != "" {
		name = u.Username
	}
	return LocalOwnerPrefix + name
}

// LocalOwnerPrefix begins the owners that are users of this system.
const LocalOwnerPrefix = "local:"

// withDefaults fills in what the caller left out: every run has an owner.
func (c Caller) withDefaults() Caller {
	if c.Name == "" {
		c.Name = LocalOwner(os.Geteuid())
	}
	if c.Via == "" {
		c.Via = ViaAPI
	}
	return c
}
