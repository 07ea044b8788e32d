package machine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/vmm"
)

// remembered stores what earlier boots showed about accelerators.
type remembered struct {
	Accel vmm.Accel `json:"accel"` // the best that booted the image, "" if none is known
	// Why explains, for TCG, what failed before; "" if nothing else was tried, or it failed for another reason.
	Why string    `json:"why,omitempty"`
	At  time.Time `json:"at"`
}

// retryHardware is the time after which hardware that failed is tried again: it may have been busy, and KVM's
// module may have been loaded since.
const retryHardware = 10 * time.Minute

// maxWhy bounds the stored reason of a failure, in bytes.
const maxWhy = 500

// accelKey returns the cache key for the accelerator that boots an image. It depends on the QEMU, the image and
// the boot of the host.
func accelKey(spec Spec) string {
	return "accelerator " + spec.QEMU.ID + " " + spec.Image.Digest + " " + bootID()
}

// known returns the cached result for a spec.
func (s *Source) known(spec Spec) (r remembered) {
	text, _ := s.cache.Get(accelKey(spec))
	if json.Unmarshal([]byte(text), &r) != nil {
		return remembered{}
	}
	return r
}

// Works remembers that the spec's accelerator boots its image here, if the boot was a test: TCG on request proves
// nothing about hardware. failed holds what failed before. Works returns whether TCG replaces hardware for a reason
// that this host's user has not been told yet.
func (s *Source) Works(spec Spec, failed error) (first bool) {
	if spec.Accel == vmm.TCG && s.opts.Accel != vmm.Auto {
		return false
	}
	before, now := s.known(spec), remembered{Accel: spec.Accel, At: time.Now().UTC()}
	switch {
	case failed != nil:
		now.Why = oneLine(failed)
	case before.Accel == spec.Accel:
		return false // nothing was tried again
	}
	s.remember(spec, now)
	why := s.WhySlow(spec)
	if told, _ := s.cache.Get(slowKey); before.Accel == vmm.TCG || why == "" || told == why {
		return false
	}
	s.cache.Put(slowKey, why)
	return true
}

// slowKey is the cache's key of the reason for TCG that was told last. It is the same for all images.
const slowKey = "slow"

func (s *Source) remember(spec Spec, r remembered) {
	if text, err := json.Marshal(r); err == nil {
		s.cache.Put(accelKey(spec), string(text))
	}
}

// WhySlow explains why a machine runs under TCG instead of hardware acceleration. It returns "" if the machine
// has hardware acceleration, or none was wanted.
func (s *Source) WhySlow(spec Spec) string {
	if spec.Accel != vmm.TCG || s.opts.Accel != vmm.Auto {
		return ""
	}
	if why := s.known(spec).Why; why != "" {
		return why
	}
	_, rejected, _ := s.host(spec.QEMU).Candidates(vmm.Arch(spec.Image.Arch), vmm.Auto)
	own := map[string]vmm.Accel{"linux": vmm.KVM, "darwin": vmm.HVF}[runtime.GOOS]
	for _, r := range rejected {
		if r.Accel == own {
			return fmt.Sprintf("%s: %s", r.Accel, r.Reason)
		}
	}
	return untried(own)
}

// untried explains why TCG replaces hardware: the hardware was missing before, or a disturbed test was not repeated
// yet.
func untried(hardware vmm.Accel) string {
	return fmt.Sprintf("%s: it is there now, and whether it works is being found out", hardware)
}

// disturbed remembers that a test of the spec's accelerator was inconclusive, so the next run may try again. The
// cached earlier failure stays.
func (s *Source) disturbed(spec Spec, err error) {
	known := s.known(spec)
	if why := known.Why; why == untried(spec.Accel) || strings.HasPrefix(why, disturbedTry(spec.Accel)) {
		known.Why = oneLine(fmt.Errorf("%s%w", disturbedTry(spec.Accel), err))
	}
	known.At = time.Now().UTC().Add(-retryHardware)
	s.remember(spec, known)
}

func disturbedTry(hardware vmm.Accel) string {
	return fmt.Sprintf("%s: the try was disturbed: ", hardware)
}

// tryHardware tests in the background whether hardware that failed or was missing works now. The next test
// follows after retryHardware, or with the next run if the test was disturbed.
func (s *Source) tryHardware(spec Spec) {
	known := s.known(spec)
	if known.Accel != vmm.TCG || known.Why != "" && time.Since(known.At) < retryHardware {
		return
	}
	hardware, _, _ := s.host(spec.QEMU).Candidates(vmm.Arch(spec.Image.Arch), vmm.Auto)
	hardware = slices.DeleteFunc(hardware, func(a vmm.Accel) bool { return a == vmm.TCG })
	if len(hardware) == 0 {
		return
	}
	known.Why, known.At = cmp.Or(known.Why, untried(hardware[0])), time.Now().UTC()
	s.remember(spec, known)
	s.inBackground(func(ctx context.Context) {
		var failed error
		for _, accel := range hardware {
			spec.Accel = accel
			m, err := s.BootOnce(ctx, spec, Config{})
			if err == nil {
				s.Works(spec, nil)
				_ = m.Close() // the test only needed a boot
				return
			}
			if ctx.Err() != nil || Inconclusive(err) {
				s.disturbed(spec, err)
				return
			}
			failed = errors.Join(failed, fmt.Errorf("%s: %w", accel, err))
		}
		spec.Accel = vmm.TCG
		s.Works(spec, failed)
	})
}
