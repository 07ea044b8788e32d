package vmm

import (
	"errors"
	"fmt"

	"github.com/unitask/unitask/vmm/jail"
)

// Jail says what holds a machine's process: each layer and each limit.
type (
	Jail  = jail.Report
	Layer = jail.Hold
	// Attempt is one thing that a stand-in for a broken QEMU tried, and what came of it.
	Attempt = jail.Attempt
)

// Remedy says what would make a layer hold on this host, "" if nothing would.
func Remedy(l Layer) string { return jail.Remedy(l) }

// TryJail says what holds a stand-in for this QEMU, which does nothing.
func TryJail(q QEMU, accel Accel) (Jail, error) { return jail.Try(q.Program, usesKVM(q, accel)) }

// Attack puts a stand-in for a broken QEMU into the jail that this QEMU would get, has
// it try all that must not be possible, and returns what came of it.
func Attack(q QEMU, accel Accel) ([]Attempt, Jail, error) {
	return jail.Attack(q.Program, usesKVM(q, accel), false)
}

// usesKVM says how a QEMU comes by KVM: one that can is given the open device, so that its jail
// has neither that nor the device's group.
func usesKVM(q QEMU, accel Accel) jail.KVM {
	switch {
	case accel != KVM:
		return jail.NoKVM
	case q.atLeast(9, 0): // the accelerator has a property device since then; Ubuntu 24.04's 8.2.2 refuses it
		return jail.KVMPassed
	}
	return jail.KVMOpened
}

// MapsFiles reports whether a QEMU, in its jail, can have its memory from a template's own file
// (Config.MemoryFile): QEMU 8.2 can map one that it opens for reading only, one before that gets
// a descriptor for reading when it opens it for writing too, of which it maps private pages
// as well; and Landlock and the filter see to it that one that was broken out of, whoever's it is, does no
// more than that.
func MapsFiles(q QEMU) bool { return (q.opensReadOnly() || jail.CanGive()) && jail.Confines(q.Program) }

// ErrNotHeld means that a QEMU may not have a file, since its jail does not hold.
var ErrNotHeld = errors.New("the jail does not hold as it should")

// holds says why a process can't have a template's own file, or what it is to be given for it.
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

// CanShareProcessor says why no machine can be held to a fraction of a processor's time here, with the remedy; nil if
// one can.
func CanShareProcessor() error {
	if err := jail.CanShare(); err != nil {
		return fmt.Errorf("a fraction of a processor wants a control group with the cpu controller: %w", err)
	}
	return nil
}
