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
		"tcg that was asked for":        {vmm.TCG, []step{{vmm.TCG, "", false, "", ""}}},
		"kvm that was asked for":        {vmm.KVM, []step{{vmm.KVM, "", false, vmm.KVM, ""}}},
		"kvm works":                     {vmm.Auto, []step{{vmm.KVM, "", false, vmm.KVM, ""}, {vmm.KVM, "", false, vmm.KVM, ""}}},
		"kvm fails, and is told once":   {vmm.Auto, []step{{vmm.TCG, "kvm: aborted", true, vmm.TCG, "kvm: aborted"}, {vmm.TCG, "", false, vmm.TCG, "kvm: aborted"}, {vmm.TCG, "kvm: hung", false, vmm.TCG, "kvm: hung"}}},
		"kvm fails later":               {vmm.Auto, []step{{vmm.KVM, "", false, vmm.KVM, ""}, {vmm.TCG, "kvm: aborted", true, vmm.TCG, "kvm: aborted"}}},
		"kvm works when it is retried":  {vmm.Auto, []step{{vmm.TCG, "kvm: aborted", true, vmm.TCG, "kvm: aborted"}, {vmm.KVM, "", false, vmm.KVM, ""}}},
		"an endless reason is cut":      {vmm.Auto, []step{{vmm.TCG, strings.Repeat("x", 2*maxWhy), true, vmm.TCG, strings.Repeat("x", maxWhy)}}},
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
	s.cache.Put(accelKey(spec), "tcg") // as it was once written
	if known := s.known(spec); known.Accel != "" {
		t.Errorf("%+v", known)
	}
}

// Hardware that failed is tried again after a while, once, and without anybody waiting.
func TestAccelRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, spec := accelSource(t, vmm.Auto)
		spec.Accel = vmm.TCG
		s.Works(spec, errors.New("kvm: aborted"))
		at := s.known(spec).At
		s.stop() // what would be booted is another test's matter
		for _, c := range []struct {
			wait time.Duration // since the last try
			want bool
		}{{retryHardware - time.Second, false}, {retryHardware, true}, {time.Minute, false}, {retryHardware, true}} {
			time.Sleep(time.Until(at.Add(c.wait)))
			s.tryHardware(spec)
			known := s.known(spec)
			if tried := known.At.After(at); tried != c.want || known.Accel != vmm.TCG || known.Why == "" {
				t.Errorf("after %s: tried %v, %+v", c.wait, tried, known)
			}
			at = known.At
		}
	})
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

// A probe that has greeted has more time than one of which nothing is heard.
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
