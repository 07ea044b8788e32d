package machine

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/vmm"
)

func accelSource(t *testing.T, wish vmm.Accel) (*Source, Spec) {
	s := Open(Options{Home: t.TempDir(), Accel: wish})
	t.Cleanup(func() { s.Close() })
	return s, Spec{Image: &image.Image{Digest: "d", Arch: image.HostArch()}, QEMU: vmm.QEMU{ID: "q"}}
}

// What is remembered of accelerators, and whether the user is told.
func TestAccelMemory(t *testing.T) {
	type step struct {
		accel  vmm.Accel
		failed string
		first  bool      // the user is told
		known  vmm.Accel // afterwards
		why    string
	}
	for name, c := range map[string]struct {
		wish  vmm.Accel
		steps []step
	}{
		"tcg that was asked for": {vmm.TCG, []step{{vmm.TCG, "", false, "", ""}}},
		"kvm that was asked for": {vmm.KVM, []step{{vmm.KVM, "", false, vmm.KVM, ""}}},
		"kvm works": {vmm.Auto, []step{{vmm.KVM, "", false, vmm.KVM, ""},
			{vmm.KVM, "", false, vmm.KVM, ""}}},
		"kvm fails, and is told once": {vmm.Auto, []step{{vmm.TCG, "kvm: aborted", true, vmm.TCG, "kvm: aborted"},
			{vmm.TCG, "", false, vmm.TCG, "kvm: aborted"}, {vmm.TCG, "kvm: hung", false, vmm.TCG, "kvm: hung"}}},
		"kvm fails later": {vmm.Auto, []step{{vmm.KVM, "", false, vmm.KVM, ""},
			{vmm.TCG, "kvm: aborted", true, vmm.TCG, "kvm: aborted"}}},
		"kvm works when it is retried": {vmm.Auto, []step{{vmm.TCG, "kvm: aborted", true, vmm.TCG, "kvm: aborted"},
			{vmm.KVM, "", false, vmm.KVM, ""}}},
		"an endless reason is cut": {vmm.Auto, []step{{vmm.TCG, strings.Repeat("x", 2*maxWhy), true, vmm.TCG,
			strings.Repeat("x", maxWhy)}}},
		"a reason of lines is one line": {vmm.Auto, []step{{vmm.TCG, "kvm: a\nhvf: b", true, vmm.TCG, "kvm: a; hvf: b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s, spec := accelSource(t, c.wish)
			for i, step := range c.steps {
				spec.Accel = step.accel
				var failed error
				if step.failed != "" {
					failed = errors.New(step.failed)
				}
				if first := s.Works(spec, failed); first != step.first {
					t.Errorf("step %d: told %v", i, first)
				}
				if known := s.known(spec); known.Accel != step.known || known.Why != step.why {
					t.Errorf("step %d: %+v", i, known)
				}
			}
			other := spec
			other.QEMU.ID = "another"
			if known := s.known(other); known.Accel != "" {
				t.Errorf("another QEMU's: %+v", known)
			}
		})
	}
	s, spec := accelSource(t, vmm.Auto)
	s.cache.Put(accelKey(spec), "tcg") // in an old format
	if known := s.known(spec); known.Accel != "" {
		t.Errorf("%+v", known)
	}
}

// Hardware that failed is tried again after a while. Hardware that was missing is tried when it appears. Each is tried
// once, and nobody waits for it.
func TestAccelRetry(t *testing.T) {
	const own, other = vmm.AMD64, vmm.ARM64
	for name, c := range map[string]struct {
		failed error // of tries before TCG
		guest  vmm.Arch
		absent bool   // until it is tried for the first time
		why    string // the reason for slowness, afterwards
		tries  []bool // tries when it is there; 10 minutes less a second after the last try; 10 minutes; 11; 20
	}{
		"it failed": {errors.New("kvm: aborted"), own, false, "kvm: aborted",
			[]bool{false, false, true, false, true}},
		"it failed, and is gone since": {errors.New("kvm: aborted"), own, true, "kvm: aborted",
			[]bool{false, false, true, false, true}},
		"it was not there":      {nil, own, true, untried(vmm.KVM), []bool{true, false, true, false, true}},
		"its try was disturbed": {nil, own, false, untried(vmm.KVM), []bool{true, false, true, false, true}},
		"the guest is of another architecture": {nil, other, false, "kvm: the guest is arm64 and this machine is amd64",
			[]bool{false, false, false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, spec := accelSource(t, vmm.Auto)
				host := vmm.Host{OS: "linux", Arch: string(own)}
				if c.absent {
					host.KVM = errors.New("/dev/kvm does not exist")
				}
				s.host = func(vmm.QEMU) vmm.Host { return host }
				s.stop() // another test covers the boots
				spec.Image.Arch, spec.Accel = image.Arch(c.guest), vmm.TCG
				s.Works(spec, c.failed)
				at := s.known(spec).At
				if c.absent {
					if s.tryHardware(spec); !s.known(spec).At.Equal(at) {
						t.Error("what is not there is tried")
					}
				}
				if why := s.WhySlow(spec); c.absent && c.failed == nil && why != "kvm: /dev/kvm does not exist" {
					t.Errorf("it is slow since %q", why)
				}
				host.KVM = nil
				if c.failed == nil { // so that a try is visible
					testwait.Pass(time.Second)
				}
				// since the last try
				for i, wait := range []time.Duration{0, retryHardware - time.Second, retryHardware, time.Minute, retryHardware} {
					testwait.Pass(time.Until(at.Add(wait)))
					s.tryHardware(spec)
					known := s.known(spec)
					if tried := known.At.After(at); tried != c.tries[i] || known.Accel != vmm.TCG {
						t.Errorf("%s after the last one: tried %v, %+v", wait, tried, known)
					}
					at = known.At
				}
				if why := s.WhySlow(spec); why != c.why {
					t.Errorf("it is slow since %q", why)
				}
			})
		})
	}
}

// A disturbed try says so, and the next run tries again. The reported reason stays that of the earlier failure.
func TestAccelDisturbed(t *testing.T) {
	disturbed := disturbedTry(vmm.KVM)
	for name, c := range map[string]struct {
		failed error // of tries before TCG
		why    string
	}{
		"it was not there": {nil, disturbed},
		"it failed":        {errors.New("kvm: aborted"), "kvm: aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			s, spec := accelSource(t, vmm.Auto)
			s.host = func(vmm.QEMU) vmm.Host { return vmm.Host{OS: "linux", Arch: string(vmm.AMD64)} }
			// it can't be started, which shows nothing about KVM
			spec.Image.Arch, spec.Accel, spec.QEMU.Path = image.AMD64, vmm.TCG, "/nowhere/qemu"
			s.Works(spec, c.failed)
			known := s.known(spec)
			known.At = known.At.Add(-retryHardware)
			s.remember(spec, known)
			for range 2 {
				s.tryHardware(spec)
				testwait.Until(t, "the try has ended, and the next may begin", func() bool {
					known = s.known(spec)
					return time.Since(known.At) >= retryHardware
				})
				if !strings.HasPrefix(known.Why, c.why) || c.failed == nil && len(known.Why) == len(c.why) ||
					time.Since(known.At) < retryHardware || known.Accel != vmm.TCG {
					t.Errorf("%+v", known)
				}
				if why := s.WhySlow(spec); why != known.Why {
					t.Errorf("it is slow since %q", why)
				}
			}
		})
	}
}

// bell is a network on which the guest rings after a while.
type bell struct{ rings time.Time }

func (b bell) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	select {
	case <-time.After(time.Until(b.rings)):
		return []byte(contract.WordBell), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
func (bell) SendDatagram([]byte)                                 {}
func (bell) DialGuest(context.Context, uint16) (net.Conn, error) { return nil, errors.New("no guest") }
func (bell) Done() <-chan struct{}                               { return nil }

// A probe that has greeted has more time than a silent one.
func TestProbeDeadline(t *testing.T) {
	const never = time.Hour
	for name, c := range map[string]struct {
		deadline, greets, rings, want time.Duration
		up                            bool
	}{
		"hardware hangs before it greets":      {hardwareProbe, never, never, hardwareProbe, false},
		"it greets, and hangs":                 {hardwareProbe, time.Second, never, greetedProbe, false},
		"it greets, and is slow":               {hardwareProbe, time.Second, 9 * time.Second, 9 * time.Second, true},
		"it is quick":                          {hardwareProbe, 0, time.Second, time.Second, true},
		"one that works here has its own time": {bootDeadline, 0, 29 * time.Second, 29 * time.Second, true},
		"one that works here, and hangs":       {bootDeadline, 0, never, bootDeadline, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				greeted := make(chan struct{})
				defer time.AfterFunc(c.greets, func() { close(greeted) }).Stop()
				start := time.Now()
				_, err := await(t.Context(), bell{start.Add(c.rings)}, c.deadline, greeted)
				if took := time.Since(start); took != c.want || (err == nil) != c.up {
					t.Errorf("%s, %v", took, err)
				}
			})
		})
	}
}
