package unitask

import (
	"os"
	"os/user"
	"strconv"
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
