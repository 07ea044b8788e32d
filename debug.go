package unitask

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
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

// Debug is Run for a developer who inspects the machine. It is booted, stopped before its first
// instruction, and has no deadlines, not even the time limit, because it may stand still for
// long. The record says that it was debugged.
func (rt *Runtime) Debug(ctx context.Context, caller Caller, req Request, streams IO, opts DebugOptions) (*Result, error) {
	req.Debug = true
	return rt.runFor(ctx, caller, catalog.Request{Request: req}, streams, inspection{debug: &opts})
}

// check says why a run can't be debugged.
func (o *DebugOptions) check(c *policy.Ceiling, secrets int) error {
	if secrets > 0 && !o.WithSecrets {
		return secretsUnderDebug(secrets)
	}
	return attach.Allowed(c)
}

func secretsUnderDebug(n int) error {
	return policy.Bad("secrets", fmt.Sprintf("of %d names", n), "a debugger can read them: --with-secrets allows it")
}

// Consoles joins consoles to machines of runs that run now.
func (rt *Runtime) Consoles() *attach.Client {
	return &attach.Client{History: rt.history, Ceiling: rt.opts.Ceiling}
}

// attachable lets consoles join a run's machine until detach is called. release ends a machine that is kept.
func (rt *Runtime) attachable(rec *record.Run, m *machine.Machine, secrets bool, redactor *record.Redactor,
	release func() error,
) (detach func()) {
	server := attach.Server{Machine: m, Secrets: secrets, Redactor: redactor, Release: release}
	return server.Listen(rec.Dir())
}
