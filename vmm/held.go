package vmm

import (
	"errors"
	"fmt"

	"github.com/unitask/unitask/vmm/jail"
)

// Jail reports each layer and each limit that confines a machine's process.
type (
	Jail  = jail.Report
	Layer = jail.Hold
	// Attempt is one action of a stand-in for a broken QEMU, and its outcome.
	Attempt = jail.Attempt
)

// Remedy tells what would make a layer hold on this host, or returns "".
func Remedy(l Layer) string { return jail.Remedy(l) }

// TryJail reports which layers confine a stand-in for this QEMU, which does nothing.
func TryJail(q QEMU, accel Accel) (Jail, error) { return jail.Try(q.Program, usesKVM(q, accel)) }

// Attack puts a stand-in for a broken QEMU into the jail of this QEMU. The stand-in tries everything that must be
// impossible, and Attack returns the outcomes.
func Attack(q QEMU, accel Accel) ([]Attempt, Jail, error) {
	return jail.Attack(q.Program, usesKVM(q, accel), false)
}

// usesKVM returns how a QEMU gets access to KVM. A QEMU that can use an open device is passed one, so that its jail
// contains neither the device nor its group.
func usesKVM(q QEMU, accel Accel) jail.KVM {
	switch {
	case accel != KVM:
		return jail.NoKVM
	case q.atLeast(9, 0): // the version that added the accelerator's property device; Ubuntu 24.04's 8.2.2 refuses it
		return jail.KVMPassed
	}
	return jail.KVMOpened
}

// MapsFiles reports whether a QEMU, in its jail, can use a template's own file as memory (Config.MemoryFile). QEMU 8.2
// can map a file that it opens for reading only. An older QEMU opens the file for writing, but receives a descriptor
// for reading, of which it maps private pages as well. Landlock and the filter keep a broken QEMU from doing more than
// that, whoever owns the file.
func MapsFiles(q QEMU) bool { return (q.opensReadOnly() || jail.CanGive()) && jail.Confines(q.Program) }

// ErrNotHeld means that a QEMU must not get a file because its jail does not hold.
var ErrNotHeld = errors.New("the jail does not hold as it should")

// holds returns an error if a process must not get a template's own file, or can't be given its descriptor.
func holds(p *jail.Process, file, given bool) error {
	unheld := p.Report.Lacks([]string{jail.Landlock, jail.Seccomp})
	switch {
	case file && len(unheld) > 0:
		return fmt.Errorf("%w: %s", ErrNotHeld, unheld[0].Why)
	case given && !p.Gives():
		return fmt.Errorf("%w: its filter has no listener", ErrNotHeld)
	}
	return nil
}

// CanShareProcessor returns nil if a machine can be limited to a fraction of a processor's time on this host.
// Otherwise, the error includes the remedy.
func CanShareProcessor() error {
	if err := jail.CanShare(); err != nil {
		return fmt.Errorf("a fraction of a processor wants a control group with the cpu controller: %w", err)
	}
	return nil
}
