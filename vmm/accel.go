package vmm

import (
	"fmt"
	"os"
	"runtime"

	"github.com/unitask/unitask/vmm/jail"
)

// Accel names an accelerator as QEMU's -accel does.
type Accel string

const (
	Auto Accel = "auto" // try the candidates in turn, by booting
	KVM  Accel = "kvm"
	HVF  Accel = "hvf"
	TCG  Accel = "tcg" // QEMU's own translation: always available, slower
)

// ParseAccel accepts auto, kvm, hvf and tcg. "" means auto.
func ParseAccel(s string) (Accel, error) {
	switch a := Accel(s); a {
	case "":
		return Auto, nil
	case Auto, KVM, HVF, TCG:
		return a, nil
	}
	return "", fmt.Errorf("unknown accelerator %q: use auto, kvm, hvf or tcg", s)
}

// Host describes what the choice of an accelerator depends on.
type Host struct {
	OS, Arch string // in the form of runtime.GOOS and runtime.GOARCH
	// KVM is nil if /dev/kvm can be opened for reading and writing, by this process and by a QEMU that opens it itself.
	// That does not prove that KVM works: only a boot does.
	KVM error
}

// ThisHost describes this host, as a QEMU will use it.
func ThisHost(q QEMU) Host {
	return Host{OS: runtime.GOOS, Arch: runtime.GOARCH, KVM: kvmUsable(q, jail.KVMDevice, os.Getuid())}
}

// Rejection tells why an accelerator is not a candidate.
type Rejection struct {
	Accel  Accel  `json:"accel"`
	Reason string `json:"reason"`
}

// Candidates returns the accelerators worth booting for a guest, best first, and why each other one is rejected. Asking
// for an unavailable accelerator is an error.
func (h Host) Candidates(guest Arch, want Accel) ([]Accel, []Rejection, error) {
	var good []Accel
	var bad []Rejection
	for _, a := range []Accel{KVM, HVF, TCG} {
		if reason := h.reject(a, guest); reason != "" {
			bad = append(bad, Rejection{a, reason})
		} else {
			good = append(good, a)
		}
	}
	if want == Auto || want == "" {
		return good, bad, nil
	}
	for _, a := range good {
		if a == want {
			return []Accel{a}, bad, nil
		}
	}
	for _, r := range bad {
		if r.Accel == want {
			return nil, bad, fmt.Errorf("accelerator %s can't be used: %s; --accel auto picks one that works", want, r.Reason)
		}
	}
	return nil, bad, fmt.Errorf("unknown accelerator %q", want)
}

func (h Host) reject(a Accel, guest Arch) string {
	switch {
	case a == TCG:
		return ""
	case a == KVM && h.OS != "linux":
		return "KVM is Linux's; this is " + h.OS
	case a == HVF && h.OS != "darwin":
		return "HVF is macOS's; this is " + h.OS
	case string(guest) != h.Arch:
		return fmt.Sprintf("the guest is %s and this machine is %s", guest, h.Arch)
	case a == KVM && h.KVM != nil:
		return h.KVM.Error()
	}
	return ""
}
