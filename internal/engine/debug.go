package engine

import (
	"fmt"
	"io"
	"os"

	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// DebugOptions configure Runtime.Debug.
type DebugOptions struct {
	// GDB, if not nil, is a listening socket for gdb's remote protocol.
	GDB *os.File
	// NoJail runs QEMU as the user, without our jail.
	NoJail bool
	// WithSecrets lets a run have secrets: a debugger can read them.
	WithSecrets bool
	// Serial, if not nil, receives the guest's console as it comes, not redacted.
	Serial io.Writer
	// Started is called when the machine exists, its processor stopped. It must not block.
	Started func(*machine.Debugger)
}

// Check returns an error if a run can't be debugged.
func (o *DebugOptions) check(c *policy.Ceiling, secrets int) error {
	if secrets > 0 && !o.WithSecrets {
		return secretsUnderDebug(secrets)
	}
	return attach.Allowed(c)
}

func secretsUnderDebug(n int) error {
	return policy.Bad("secrets", fmt.Sprintf("of %d names", n), "a debugger can read them: --with-secrets allows it")
}
