package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/vmm"
)

// Deadlines of a boot, until the guest rings its bell.
const (
	// hardwareProbe: on an accelerator that is not known to work here. One that
	// works needs half a second; a broken KVM often hangs.
	hardwareProbe = 4 * time.Second
	// bootDeadline: on one that works. A boot takes one to three seconds under
	// TCG, several times that on a machine that is busy.
	bootDeadline = 30 * time.Second
)

// Boot boots a machine on the spec's accelerator, or where it has none on the best that
// works, and remembers which.
func (s *Source) Boot(ctx context.Context, spec Spec, cfg Config) (*Machine, error) {
	arch := vmm.Arch(spec.Image.Arch)
	candidates, _, err := vmm.ThisHost().Candidates(arch, s.opts.Accel)
	if err != nil {
		return nil, err
	}
	var m *Machine
	err = best(ctx, candidates, s.opts.Accel, s.knownAccel(spec), cfg, func(accel vmm.Accel) (err error) {
		spec.Accel = accel
		if m, err = s.BootOnce(ctx, spec, cfg); err == nil {
			s.Works(spec)
		}
		return err
	})
	return m, err
}

// best boots on one candidate after the other until one works. Under Auto the one that
// is known to work comes first, and hardware that is not has one try.
func best(ctx context.Context, candidates []vmm.Accel, wish, known vmm.Accel, cfg Config, boot func(vmm.Accel) error) error {
	if wish == vmm.Auto {
		candidates = knownFirst(candidates, known)
	}
	var failures []error
	for _, accel := range candidates {
		tries := 2
		if accel != vmm.TCG && accel != known && wish == vmm.Auto {
			tries = 1
		}
		for try := range tries {
			err := boot(accel)
			if err == nil || ctx.Err() != nil || cfg.Keep != nil && errors.As(err, new(*GuestError)) {
				return err // a machine that was kept was looked at, and is not tried again
			}
			failures = append(failures, fmt.Errorf("%s: %w", accel, err))
			if try+1 < tries && errors.Is(err, context.DeadlineExceeded) {
				cfg.event(EventRetry, failures[len(failures)-1].Error())
				continue
			}
			break
		}
		cfg.event(EventAccel, failures[len(failures)-1].Error())
	}
	err := errors.Join(failures...)
	if wish != vmm.Auto && wish != vmm.TCG {
		err = fmt.Errorf("accelerator %w; --accel auto picks one that works, --accel tcg works everywhere", err)
	}
	return err
}

// knownFirst moves the accelerator that worked before to the front; those that
// were tried before it then are not tried again.
func knownFirst(candidates []vmm.Accel, known vmm.Accel) []vmm.Accel {
	for i, a := range candidates {
		if a == known {
			return candidates[i:]
		}
	}
	return candidates
}

// accelKey names the answer to "which accelerator boots this": it is good for one
// QEMU, one image and one boot of the host.
func accelKey(spec Spec) string {
	return "accel " + spec.QEMU.ID + " " + spec.Image.Digest + " " + bootID()
}

// knownAccel is the accelerator that booted the image here before, or "".
func (s *Source) knownAccel(spec Spec) vmm.Accel {
	known, _ := s.cache.Get(accelKey(spec))
	return vmm.Accel(known)
}

// Works remembers that the spec's accelerator boots its image here.
func (s *Source) Works(spec Spec) { s.cache.Put(accelKey(spec), string(spec.Accel)) }

// bootID changes when the host is booted.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// BootOnce boots a machine on the spec's accelerator and waits for the guest's bell.
func (s *Source) BootOnce(ctx context.Context, spec Spec, cfg Config) (*Machine, error) {
	return s.boot(ctx, spec, nil, cfg)
}

// boot boots a machine whose memory is a memfd, or QEMU's own where that is nil.
func (s *Source) boot(ctx context.Context, spec Spec, memory *os.File, cfg Config) (*Machine, error) {
	deadline := bootDeadline
	if spec.Accel != vmm.TCG && spec.Accel != s.knownAccel(spec) {
		deadline = hardwareProbe
	}
	network, err := netstack.New(cfg.Network)
	if err != nil {
		return nil, err
	}
	m := &Machine{Spec: spec, network: network, console: newConsole(cfg.Console), state: Running, keep: cfg.Keep != nil}
	if m.keep {
		m.console.lost, m.halted = true, make(chan struct{})
	}
	start := vmm.Config{Memory: memory, NIC: network.GuestEnd(), Console: m.console, Keep: m.keep}
	if cfg.Trace != nil {
		start.Log, start.LogItems = cfg.Trace.Log, cfg.Trace.LogItems
	}
	start = s.config(spec, start)
	if cfg.Trace != nil && cfg.Trace.Calls != nil {
		m.calls = &callLines{kernel: spec.Image.Kernel, calls: cfg.Trace.Calls, rest: m.console}
		start.Console = m.calls
		if spec.Image.Kernel == image.Linux {
			start.Boot.Append += " " + contract.BootTrace
		}
	}
	if cfg.Debug != nil {
		deadline = debugPatience
		err = s.debugger(ctx, m, *cfg.Debug)
	} else {
		m.vm, err = vmm.Start(ctx, start)
	}
	network.ReleaseGuestEnd()
	if err != nil {
		network.Close()
		return nil, err
	}
	if m.debug != nil {
		m.debug.started(m.debug)
	}
	m.watch()
	timed, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if err := guest.Await(timed, network); err != nil {
		err = m.Explain(err)
		if m.keep && m.isHalted() {
			cfg.Keep(m, err)
		}
		m.Close()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("the guest did not come up within %s: %w", deadline, err)
		}
		return nil, err
	}
	return m, nil
}

// config is a spec as vmm starts it, with the descriptors in cfg.
func (s *Source) config(spec Spec, cfg vmm.Config) vmm.Config {
	cfg.QEMU, cfg.Arch, cfg.Accel, cfg.MemoryMB = spec.QEMU, vmm.Arch(spec.Image.Arch), spec.Accel, spec.MemoryMB
	cfg.Boot = vmm.Boot(spec.Image.Boot())
	if spec.Image.Kernel != image.Linux {
		return cfg // it takes no command line
	}
	cfg.Boot.Append += " " + contract.BootArg + s.opts.Program.Arg(spec.MemoryMB)
	if spec.Fresh {
		cfg.Boot.Append += " " + contract.BootLazy
	}
	if khz := s.tscKHz(); khz > 0 && spec.Accel == vmm.TCG && spec.Image.Arch == image.AMD64 {
		// Under TCG the guest's TSC is the host's. Without this, and without an
		// HPET, its calibration fails on a busy host and one boot in 15 hangs.
		cfg.Boot.Append += " tsc_early_khz=" + strconv.Itoa(khz)
	}
	return cfg
}

// tscKHz measures the host's time stamp counter once a boot.
func (s *Source) tscKHz() int {
	key := "tsc " + bootID()
	if v, ok := s.cache.Get(key); ok {
		khz, _ := strconv.Atoi(v)
		return khz
	}
	khz := vmm.HostTSCKHz()
	s.cache.Put(key, strconv.Itoa(khz))
	return khz
}
