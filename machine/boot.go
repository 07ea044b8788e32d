package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/vmm"
)

// Deadlines of a boot, until the guest sends its first packet.
const (
	// hardwareProbe applies to an accelerator that is not known to work here. A working one needs half a second;
	// a broken KVM often hangs.
	hardwareProbe = 4 * time.Second
	// greetedProbe is the total if QEMU has sent its greeting meanwhile, and so has set up the accelerator. A
	// busy or nested host may need that long.
	greetedProbe = 10 * time.Second
	// bootDeadline applies to a working accelerator. A boot takes one to three seconds under TCG, and several
	// times that on a busy machine.
	bootDeadline = 30 * time.Second
)

// Boot boots a machine on the spec's accelerator. If the spec has none, Boot uses the best one that works, and
// remembers it.
func (s *Source) Boot(ctx context.Context, spec Spec, cfg Config) (*Machine, error) {
	spec = spec.bare()
	candidates, _, err := s.host(spec.QEMU).Candidates(vmm.Arch(spec.Image.Arch), s.opts.Accel)
	if err != nil {
		return nil, err
	}
	var m *Machine
	err = best(ctx, candidates, s.opts.Accel, s.known(spec).Accel, cfg, func(accel vmm.Accel, failed error) (err error) {
		spec.Accel = accel
		if m, err = s.BootOnce(ctx, spec, cfg); err == nil && s.Works(spec, failed) {
			cfg.event(EventFallback, "without hardware acceleration, which makes code several times slower: "+s.WhySlow(spec))
		}
		return err
	})
	return m, err
}

// Inconclusive reports whether a failed boot says nothing about its accelerator. Either QEMU could not be started, for
// example because the host is out of file descriptors, or somebody killed QEMU.
func Inconclusive(err error) bool {
	return killed(err) || !errors.As(err, new(*vmm.ExitError)) && !errors.As(err, new(*GuestError)) &&
		!errors.Is(err, context.DeadlineExceeded)
}

// best boots on one candidate after the other until one works; boot receives the failures of the earlier ones.
// Under Auto the accelerator that is known to work comes first, and unknown hardware gets one try. An
// inconclusive failure is retried once.
func best(ctx context.Context, candidates []vmm.Accel, wish, known vmm.Accel, cfg Config,
	boot func(accel vmm.Accel, failed error) error) error {
	if wish == vmm.Auto {
		candidates = knownFirst(candidates, known)
	}
	var failures, conclusive []error
	for _, accel := range candidates {
		tries, disturbed := 2, false
		if accel != vmm.TCG && accel != known && wish == vmm.Auto {
			tries = 1
		}
		before := errors.Join(conclusive...)
		for {
			err := boot(accel, before)
			if err == nil || ctx.Err() != nil || cfg.Keep != nil && errors.As(err, new(*GuestError)) {
				return err // a kept machine was already inspected: no retry
			}
			failed := fmt.Errorf("%s: %w", accel, err)
			failures = append(failures, failed)
			again := false
			if Inconclusive(err) {
				again, disturbed = !disturbed, true
			} else {
				conclusive = append(conclusive, failed)
				tries--
				again = tries > 0 && errors.Is(err, context.DeadlineExceeded)
			}
			if !again {
				cfg.event(EventAccel, failed.Error())
				break
			}
			cfg.event(EventRetry, failed.Error())
		}
	}
	err := errors.Join(failures...)
	if wish != vmm.Auto && wish != vmm.TCG {
		err = fmt.Errorf("accelerator %w; --accel auto picks one that works, --accel tcg works everywhere", err)
	}
	return err
}

// knownFirst drops the candidates before the accelerator that worked last time; they have already failed.
func knownFirst(candidates []vmm.Accel, known vmm.Accel) []vmm.Accel {
	for i, a := range candidates {
		if a == known {
			return candidates[i:]
		}
	}
	return candidates
}

// BootOnce boots a machine on the spec's accelerator and waits for the guest's first packet.
func (s *Source) BootOnce(ctx context.Context, spec Spec, cfg Config) (*Machine, error) {
	return s.boot(ctx, spec, nil, cfg)
}

// boot boots a machine on a memfd; if memory is nil, QEMU allocates the memory itself.
func (s *Source) boot(ctx context.Context, spec Spec, memory *os.File, cfg Config) (*Machine, error) {
	deadline, probing := bootDeadline, spec.Accel != vmm.TCG && spec.Accel != s.known(spec).Accel
	if probing {
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
	if spec.Life == Lasting && memory == nil {
		if m.mapped, err = NewMemory(int64(spec.MemoryMB) << 20); err != nil {
			network.Close()
			return nil, err
		}
		memory = m.mapped
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
		deadline, probing = debugPatience, false
		err = s.debugger(ctx, m, *cfg.Debug)
	} else {
		m.vm, err = vmm.Start(ctx, start)
	}
	network.ReleaseGuestEnd()
	if err != nil {
		network.Close()
		m.mapped.Close() // nil is allowed
		return nil, err
	}
	if m.debug != nil {
		m.debug.started(m.debug)
	}
	m.watch()
	var greeted <-chan struct{}
	if probing {
		greeted = m.Monitor().Greeted()
	}
	if deadline, err = await(ctx, network, deadline, greeted); err == nil {
		err = m.vm.Seal() // only our own kernel and agent have run
	}
	if err != nil {
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

// await waits for the guest's first packet until the deadline, or until greetedProbe if greeted is closed by
// then. It returns the wait's final bound.
func await(ctx context.Context, network guest.Network, deadline time.Duration, greeted <-chan struct{}) (time.Duration,
	error) {
	start := time.Now()
	for {
		timed, cancel := context.WithDeadline(ctx, start.Add(deadline))
		err := guest.Await(timed, network)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && deadline < greetedProbe {
			select {
			case <-greeted:
				deadline = greetedProbe
				continue
			default:
			}
		}
		return deadline, err
	}
}

// config turns a spec into vmm's configuration, with the file descriptors in cfg.
func (s *Source) config(spec Spec, cfg vmm.Config) vmm.Config {
	cfg.QEMU, cfg.Arch, cfg.Accel, cfg.MemoryMB, cfg.CPUs = spec.QEMU, vmm.Arch(spec.Image.Arch), spec.Accel,
		spec.MemoryMB, spec.CPUs
	cfg.Boot = vmm.Boot(spec.Image.Boot())
	if spec.Image.Kernel != image.Linux {
		return cfg // it accepts no command line
	}
	if arg := s.program(spec.Image).Arg; arg != nil {
		cfg.Boot.Append += " " + contract.BootArg + arg(spec.MemoryMB)
	}
	if spec.Fresh {
		cfg.Boot.Append += " " + contract.BootLazy
	}
	if spec.Accel != vmm.TCG || spec.Image.Arch != image.AMD64 {
		return cfg
	}
	// Under TCG the guest's TSC is the host's. Without its frequency, the guest's calibration fails on a busy
	// host without HPET, and one boot in 15 hangs. Without tsc=reliable, the guest compares the TSC with timer
	// ticks, misses ticks on a busy host, and then uses the ticks as its clock. If the frequency is unknown or
	// changes, the guest uses the ACPI timer of a q35 machine.
	if khz := s.tscKHz(); khz > 0 {
		cfg.Boot.Append += " tsc=reliable tsc_early_khz=" + strconv.Itoa(khz)
	} else {
		cfg.Q35 = true
		cfg.Boot.Append += " tsc=unstable"
	}
	return cfg
}

// noTSC reports whether the frequency of a guest's time stamp counter under TCG is unknown.
func (s *Source) noTSC(im *image.Image) bool {
	return im.Arch == image.AMD64 && im.Kernel == image.Linux && s.tscKHz() == 0
}

// tscKHz measures the host's time stamp counter once a boot. It returns 0 if the frequency is unknown; the next
// process then measures again, because the host may only have been busy.
func (s *Source) tscKHz() int {
	s.tsc.Do(func() {
		key := "tsc " + bootID()
		if v, ok := s.cache.Get(key); ok {
			s.khz, _ = strconv.Atoi(v)
		} else if s.khz = vmm.HostTSCKHz(); s.khz > 0 {
			s.cache.Put(key, strconv.Itoa(s.khz))
		}
	})
	return s.khz
}
