package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

// The decisions about which machine a run gets, and about a failing template, tested without a machine.

// play is a source that plays a test case and records the actions.
type play struct {
	own, lease        *Machine // ready machines
	spawnErr, bootErr error
	opens             map[*Machine]error
	cancel            func() // called by the first open that fails, if not nil
	did               []string
}

var (
	ownOne, leasedOne = &Machine{Origin: Pooled}, &Machine{Origin: Pooled}
	spawnedOne        = &Machine{Origin: Cloned}
	bootedOne         = &Machine{Origin: Booted}
)

func (p *play) note(what string) { p.did = append(p.did, what) }

func (p *play) pooled(Spec) *Machine                  { p.note("pool"); return p.own }
func (p *play) leased(context.Context, Spec) *Machine { p.note("lease"); return p.lease }
func (p *play) templateFailed(Spec, error)            { p.note("drop") }
func (p *play) templateWorked(Spec)                   { p.note("worked") }
func (p *play) spawn(context.Context, Spec) (*Machine, error) {
	p.note("spawn")
	if p.spawnErr != nil {
		return nil, p.spawnErr
	}
	*spawnedOne = Machine{Origin: Cloned}
	return spawnedOne, nil
}
func (p *play) open(_ context.Context, m *Machine, _ Config) error {
	p.note("open")
	err := p.opens[m]
	if err != nil && p.cancel != nil {
		p.cancel()
	}
	return err
}
func (p *play) Boot(context.Context, Spec, Config) (*Machine, error) {
	p.note("boot")
	return bootedOne, p.bootErr
}

func TestGet(t *testing.T) {
	bad := errors.New("it does not come up")
	for name, c := range map[string]struct {
		play  play
		want  *Machine
		did   string
		event string // part of it
	}{
		"one stands ready":           {play{own: ownOne}, ownOne, "pool open", ""},
		"one stands ready elsewhere": {play{lease: leasedOne}, leasedOne, "pool lease open", ""},
		"one that stood ready died": {play{own: ownOne, lease: leasedOne, opens: map[*Machine]error{ownOne: bad}},
			leasedOne, "pool open lease open", ""},
		"both did": {play{own: ownOne, lease: leasedOne,
			opens: map[*Machine]error{ownOne: bad, leasedOne: bad}}, spawnedOne, "pool open lease open spawn open", ""},
		"none stands ready": {play{}, spawnedOne, "pool lease spawn open", ""},
		"no template":       {play{spawnErr: fs.ErrNotExist}, bootedOne, "pool lease spawn boot", ""},
		"a damaged template": {play{spawnErr: fmt.Errorf("%w: memory", ErrTemplate)}, bootedOne,
			"pool lease spawn drop boot", "template is damaged: memory; booting instead"},
		"no descriptors left": {play{spawnErr: errors.New("too many open files")}, bootedOne,
			"pool lease spawn boot", "too many open files; booting instead"},
		"a template that does not work": {play{opens: map[*Machine]error{spawnedOne: bad}}, bootedOne,
			"pool lease spawn open drop boot", "it does not come up; booting instead"},
		"the run is given up": {play{opens: map[*Machine]error{spawnedOne: context.Canceled}, cancel: func() {}},
			nil, "pool lease spawn open", ""},
		"nothing works": {play{spawnErr: fs.ErrNotExist, bootErr: bad}, nil, "pool lease spawn boot", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.play.cancel != nil {
				c.play.cancel = cancel
			}
			var events []string
			m, err := get(ctx, &c.play, Spec{}, Config{Events: func(e Event) { events = append(events, e.Message) }})
			if (err == nil) != (c.want != nil) || err == nil && m != c.want {
				t.Errorf("%+v %v", m, err)
			}
			if did := strings.Join(c.play.did, " "); did != c.did {
				t.Errorf("it did %q, not %q", did, c.did)
			}
			if got := strings.Join(events, "\n"); got != c.event {
				t.Errorf("it told %q", got)
			}
			if err == nil { // only a template's own clone says something about the template
				m.Unfit(bad)
				dropped := strings.Join(c.play.did, " ") == c.did+" drop"
				if dropped != (m == spawnedOne) {
					t.Errorf("unfit: %q", c.play.did)
				}
			}
		})
	}
}

type someFolders struct{ Folders }

func (someFolders) Key() string { return "some" }

// A run that brings folders gets a clone that holds them, if there is such a template. If that template fails, it gets
// a machine without the folders: they must be sent to any machine except that clone.
func TestGetWithFolders(t *testing.T) {
	bad := errors.New("it does not come up")
	for name, c := range map[string]struct {
		with     error // of a clone with the folders
		bareErr  error // of one without
		did      string
		holds    bool
		ofFailed string // whose template was dropped
	}{
		"a template that holds them": {nil, nil, "spawn open", true, ""},
		"none yet":                   {fs.ErrNotExist, nil, "spawn pool lease spawn open", false, ""},
		"none at all":                {fs.ErrNotExist, fs.ErrNotExist, "spawn pool lease spawn boot", false, ""},
		"a damaged one": {fmt.Errorf("%w: memory", ErrTemplate), nil, "spawn drop pool lease spawn open", false,
			"with"},
		"no descriptors left": {bad, bad, "spawn pool lease spawn boot", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &foldersPlay{with: c.with, bare: c.bareErr}
			m, err := get(t.Context(), p, Spec{Image: &image.Image{}, Folders: someFolders{}}, Config{})
			if err != nil {
				t.Fatal(err)
			}
			if did := strings.Join(p.did, " "); did != c.did {
				t.Errorf("it did %q, not %q", did, c.did)
			}
			if holds := m.Spec.Folders != nil; holds != c.holds || p.failed != c.ofFailed {
				t.Errorf("the machine holds them: %v; dropped %q", holds, p.failed)
			}
		})
	}
}

// foldersPlay plays templates with folders and without.
type foldersPlay struct {
	play
	with, bare error
	failed     string
}

func (p *foldersPlay) spawn(_ context.Context, spec Spec) (*Machine, error) {
	p.note("spawn")
	err := p.bare
	if spec.Folders != nil {
		err = p.with
	}
	return &Machine{Spec: spec, Origin: Cloned}, err
}

func (p *foldersPlay) templateFailed(spec Spec, _ error) {
	p.note("drop")
	p.failed = map[bool]string{true: "with", false: "bare"}[spec.Folders != nil]
}

func (p *foldersPlay) Boot(_ context.Context, spec Spec, _ Config) (*Machine, error) {
	p.note("boot")
	return &Machine{Spec: spec, Origin: Booted}, nil
}

// failures are the errors of an accelerator's tries; further tries work.
type failures = map[vmm.Accel][]error

type bestRow struct {
	candidates  []vmm.Accel
	wish, known vmm.Accel
	answers     failures
	tried       string
	err         string // parts of it, separated by |
	failed      string // the earlier failures reported to the last boot
}

// bestRows are the cases of TestBest.
func bestRows() map[string]bestRow {
	hangs := fmt.Errorf("the guest did not come up: %w", context.DeadlineExceeded)
	fails := error(&vmm.ExitError{Status: "exit status 1", Stderr: "no such device"})
	killed := fmt.Errorf("%w (the link has ended)", &vmm.ExitError{Status: "signal: killed"})
	full := fmt.Errorf("start machine: %w", syscall.EMFILE)
	kvm, tcg := vmm.KVM, vmm.TCG
	const (
		broken  = "kvm: QEMU ended: exit status 1: no such device"
		tooLate = "kvm: the guest did not come up: context deadline exceeded"
	)
	both := []vmm.Accel{kvm, tcg}
	return map[string]bestRow{
		"the first works":            {both, vmm.Auto, "", nil, "kvm", "", ""},
		"KVM is broken":              {both, vmm.Auto, "", failures{kvm: {fails}}, "kvm tcg", "", broken},
		"KVM hangs, and has one try": {both, vmm.Auto, "", failures{kvm: {hangs}}, "kvm tcg", "", tooLate},
		"it is known that TCG does":  {both, vmm.Auto, tcg, nil, "tcg", "", ""},
		"known KVM hangs once":       {both, vmm.Auto, kvm, failures{kvm: {hangs}}, "kvm kvm", "", ""},
		"known KVM does no more": {both, vmm.Auto, kvm, failures{kvm: {hangs, hangs}}, "kvm kvm tcg", "",
			tooLate + "; " + tooLate},
		"what is known is gone": {[]vmm.Accel{tcg}, vmm.Auto, kvm, nil, "tcg", "", ""},
		"TCG hangs once":        {[]vmm.Accel{tcg}, vmm.Auto, "", failures{tcg: {hangs}}, "tcg tcg", "", ""},
		"a failure is not tried again": {[]vmm.Accel{tcg}, vmm.Auto, "", failures{tcg: {fails}}, "tcg",
			"tcg: QEMU ended: exit status 1: no such device", ""},
		"KVM was asked for": {[]vmm.Accel{kvm}, kvm, "", failures{kvm: {hangs, hangs}}, "kvm kvm",
			"accelerator kvm|--accel auto picks one that works", ""},
		"each says why": {both, vmm.Auto, "", failures{kvm: {fails}, tcg: {hangs, fails}}, "kvm tcg tcg",
			broken + "|tcg: the guest did not come up|tcg: QEMU ended: exit status 1: no such device", broken},
		"KVM's is killed once":       {both, vmm.Auto, "", failures{kvm: {killed}}, "kvm kvm", "", ""},
		"KVM's is killed twice":      {both, vmm.Auto, kvm, failures{kvm: {killed, killed}}, "kvm kvm tcg", "", ""},
		"no descriptor is left once": {both, vmm.Auto, "", failures{kvm: {full}}, "kvm kvm", "", ""},
		"none is left any more": {both, vmm.Auto, "", failures{kvm: {full, full}, tcg: {full, full}},
			"kvm kvm tcg tcg", "kvm: start machine|tcg: start machine|too many open files", ""},
		"KVM is broken behind that": {both, vmm.Auto, "", failures{kvm: {full, fails}}, "kvm kvm tcg", "", broken},
		"one is killed in each turn": {both, vmm.Auto, kvm, failures{kvm: {hangs, killed, killed}}, "kvm kvm kvm tcg", "",
			tooLate},
		"no accelerator is a candidate": {nil, vmm.Auto, "", nil, "", "", ""},
	}
}

// On which accelerators a boot is tried, and how often.
func TestBest(t *testing.T) {
	kvm, tcg := vmm.KVM, vmm.TCG
	for name, c := range bestRows() {
		t.Run(name, func(t *testing.T) {
			var tried []string
			var told string
			given := slices.Clone(c.candidates)
			err := best(t.Context(), c.candidates, c.wish, c.known, Config{}, func(a vmm.Accel, failed error) error {
				tried, told = append(tried, string(a)), ""
				if failed != nil {
					told = oneLine(failed)
				}
				left := c.answers[a]
				if len(left) == 0 {
					return nil
				}
				c.answers[a] = left[1:]
				return left[0]
			})
			if got := strings.Join(tried, " "); got != c.tried {
				t.Errorf("it tried %q", got)
			}
			if told != c.failed {
				t.Errorf("it was told of %q", told)
			}
			if (err == nil) != (c.err == "") {
				t.Fatal(err)
			}
			for part := range strings.SplitSeq(c.err, "|") {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("%v: no %q", err, part)
				}
			}
			if !slices.Equal(given, c.candidates) {
				t.Error("the caller's list was changed")
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	err := best(ctx, []vmm.Accel{kvm, tcg}, vmm.Auto, "", Config{},
		func(vmm.Accel, error) error { tries++; cancel(); return context.Canceled })
	if !errors.Is(err, context.Canceled) || tries != 1 {
		t.Errorf("given up: %d tries, %v", tries, err)
	}
}
