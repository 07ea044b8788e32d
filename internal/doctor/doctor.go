// Package doctor examines a host and a home: the requirements of a run, the working accelerators, the jail of QEMU. It
// boots machines to find out, and changes only the cache of working accelerators.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
	"github.com/unitask/unitask/vmm"
)

// Doctor examines a host and a home.
type Doctor struct {
	Home        string
	Accel       vmm.Accel
	RequireJail []string
	Images      *image.Store
	Source      *machine.Source
	Catalog     *catalog.Catalog
	Records     *record.Store
	Enter       func() (leave func(), err error) // fails if the runtime is closed
}

// Check is one line of the doctor's report.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"` // for a check that is not OK, or could be better
}

// AccelReport is what the doctor found out about one accelerator.
type AccelReport struct {
	Accel  vmm.Accel `json:"accel"`
	OK     bool      `json:"ok"`
	BootMs int64     `json:"bootMs,omitempty"`
	Reason string    `json:"reason,omitempty"` // why not
}

// Report is the doctor's report.
type Report struct {
	OK bool `json:"ok"`
	// Verdict is a sentence. It says whether code can run here, and how long it takes to get a machine.
	Verdict      string        `json:"verdict"`
	Checks       []Check       `json:"checks"`
	Accelerators []AccelReport `json:"accelerators"`
}

func (r *Report) add(name string, err error, detail, remedy string) bool {
	c := Check{Name: name, OK: err == nil, Detail: detail}
	if err != nil {
		c.Detail, c.Remedy = err.Error(), remedy
		r.OK = false
	}
	r.Checks = append(r.Checks, c)
	return err == nil
}

// jail reports what confines QEMU: a line for each layer, one for the active limits, and one for each inactive limit
// with its remedy. An inactive layer is not an error of the installation, unless it is required, or without it QEMU has
// the network or files.
func (r *Report) jail(jail vmm.Jail, required []string) {
	var weak error
	if why := jail.Weakness(); why != "" {
		weak = errors.New("QEMU is not held as it should be: " + why)
	}
	r.add("jail", weak, "QEMU is held", "see the lines below")
	lacking := map[string]bool{}
	for _, l := range jail.Lacks(required) {
		lacking[l.Name] = true
	}
	line := func(l vmm.Layer, more ...string) {
		names, verb := append([]string{l.Name}, more...), "does"
		if len(more) > 0 {
			verb = "do"
		}
		detail := l.Name
		if l.Detail != "" {
			detail += ": " + l.Detail
		}
		var fault error
		if !l.Holds {
			detail = strings.Join(names, ", ") + " " + verb + " not hold: " + l.Why
			if lacking[l.Name] {
				fault = errors.New(detail + "; it is required, so nothing runs")
			}
		}
		r.add("jail", fault, detail, "")
		r.Checks[len(r.Checks)-1].Remedy = vmm.Remedy(l)
	}
	for _, l := range jail.Layers {
		line(l)
	}
	var held []string
	alike := map[string][]string{} // inactive limits, by the reason
	for _, l := range jail.Limits {
		if l.Holds {
			held = append(held, l.Name+" "+l.Detail)
		} else if !lacking[l.Name] {
			alike[l.Why+vmm.Remedy(l)] = append(alike[l.Why+vmm.Remedy(l)], l.Name)
		}
	}
	for _, l := range jail.Limits {
		names, listed := alike[l.Why+vmm.Remedy(l)]
		switch {
		case l.Holds:
		case lacking[l.Name]:
			line(l)
		case listed:
			delete(alike, l.Why+vmm.Remedy(l))
			line(l, names[1:]...)
		}
	}
	if len(held) > 0 {
		r.add("jail", nil, "limits: "+strings.Join(held, ", "), "")
	}
}

// Jail reports how machines are confined here. It uses a stand-in for QEMU to find out.
func (d *Doctor) Jail(ctx context.Context) (vmm.Jail, error) {
	leave, err := d.Enter()
	if err != nil {
		return vmm.Jail{}, err
	}
	defer leave()
	qemu, err := d.Source.QEMU(ctx, image.HostArch())
	if err != nil {
		return vmm.Jail{}, &run.HostError{Op: "jail", Err: err}
	}
	jail, err := vmm.TryJail(qemu, d.Accel)
	if err != nil {
		return jail, failure.Host("jail", err)
	}
	return jail, nil
}

// Accelerator returns the accelerator for machines of the usual image, and why it is not hardware. The reason is "" if
// it is hardware or none was wanted. A boot finds out an unknown answer, which is kept until the host's next boot. The
// error is fs.ErrNotExist if the image is not built.
func (d *Doctor) Accelerator(ctx context.Context) (accel run.Accel, whySlow string, err error) {
	leave, err := d.Enter()
	if err != nil {
		return "", "", err
	}
	defer leave()
	arch := image.HostArch()
	im, err := d.Images.Lookup(d.Images.Best(arch), arch)
	if err != nil {
		return "", "", &run.HostError{Op: "image", Err: err}
	}
	spec, err := d.Source.Spec(ctx, im, machine.Class{MemoryMB: policy.DefaultMemoryMB})
	if err == nil {
		spec, err = d.Source.Probe(ctx, spec)
	}
	if err != nil {
		return "", "", failure.Host("boot", err)
	}
	return spec.Accel, d.Source.WhySlow(spec), nil
}

// Attack runs a stand-in for a broken QEMU in the jail that machines get here. The stand-in tries everything that the
// jail must prevent.
func (d *Doctor) Attack(ctx context.Context) ([]vmm.Attempt, vmm.Jail, error) {
	leave, err := d.Enter()
	if err != nil {
		return nil, vmm.Jail{}, err
	}
	defer leave()
	qemu, err := d.Source.QEMU(ctx, image.HostArch())
	if err != nil {
		return nil, vmm.Jail{}, err
	}
	return vmm.Attack(qemu, d.Accel)
}

// Examine checks everything that a run needs and boots a real machine on every accelerator that might work. It changes
// only the cache of working accelerators.
func (d *Doctor) Examine(ctx context.Context) *Report {
	r := &Report{OK: true, Accelerators: []AccelReport{}}
	leave, err := d.Enter()
	if err != nil {
		r.add("runtime", err, "", "open another one")
		return r
	}
	defer leave()
	arch := image.HostArch()
	qemu, qemuErr := d.Source.QEMU(ctx, arch)
	r.add("qemu", qemuErr, fmt.Sprintf("%s %s", qemu.Path, qemu.Version), "install or update QEMU")

	node, err := d.Images.Parts().Get(arch, "node")
	d.addPart(r, "node", err, "Node "+node.Version)
	d.checkImages(ctx, r)
	kernel := d.Images.Best(arch)
	d.checkKernel(r, arch, kernel)

	im, imageErr := d.Images.Lookup(kernel, arch)
	switch {
	case imageErr == nil:
		r.add("image", nil, fmt.Sprintf("%s %.12s, %d MiB, built %s", im.Kernel, im.Digest, im.Size()>>20,
			im.Built.Format(time.DateOnly)), "")
	case errors.Is(imageErr, image.ErrNotVendored), errors.Is(imageErr, os.ErrNotExist):
		d.addPart(r, "image", image.ErrNotVendored, "")
	default:
		r.add("image", imageErr, "", "unitask image ls")
	}
	r.add("records", d.writable(), d.Records.Dir(), "make the folder writable, or set UNITASK_HOME to another")
	var cloned time.Duration
	if qemuErr == nil && imageErr == nil {
		spec := machine.Spec{Image: im, QEMU: qemu, MemoryMB: policy.DefaultMemoryMB}
		d.checkBoot(ctx, r, spec)
		cloned = d.checkClone(ctx, r, im)
	}
	r.conclude(cloned)
	return r
}

// addPart adds a check of a part that the first run fetches or builds. A missing part is a failure only if fetching is
// forbidden.
func (d *Doctor) addPart(r *Report, name string, err error, detail string) {
	if errors.Is(err, image.ErrNotVendored) && d.Images.Offline == "" {
		r.add(name, nil, "is fetched or built by the first run, or by unitask image build", "")
		return
	}
	r.add(name, err, detail, "unitask image vendor, where fetching is allowed")
}

// conclude writes the verdict. cloned is how long a clone took, 0 if none was made.
func (r *Report) conclude(cloned time.Duration) {
	boot, on := int64(0), vmm.Accel("")
	for _, a := range r.Accelerators {
		if a.OK && on == "" {
			boot, on = a.BootMs, a.Accel
		}
	}
	switch {
	case !r.OK:
		r.Verdict = "This host can't run code as it is: see the failures above."
	case on == "":
		r.Verdict = "Nothing speaks against running code here, but no machine has booted yet. " +
			"The first run fetches and builds what is missing, which may take minutes."
	case cloned > 0:
		const can = "This host can run code: a machine is ready in %.2f s (cloned), or in %.1f s (booted), on %s."
		r.Verdict = fmt.Sprintf(can, cloned.Seconds(), float64(boot)/1000, on)
	default:
		r.Verdict = fmt.Sprintf("This host can run code: a machine boots in %.1f s, on %s.", float64(boot)/1000, on)
	}
}

// checkImages lists the existing images, one a line.
func (d *Doctor) checkImages(ctx context.Context, r *Report) {
	listed := d.Catalog.List(ctx, nil)
	languages := map[string][]string{}
	for _, im := range listed {
		languages[im.Name] = append(languages[im.Name], im.Languages[0])
	}
	for _, im := range listed {
		if languages[im.Name] == nil {
			continue
		}
		of, err := d.Images.Of(im.Name)
		names := languages[im.Name]
		if err == nil {
			names[0] = strings.TrimSpace(names[0] + " " + of.Parts().LanguageVersion(image.HostArch()))
		}
		text := fmt.Sprintf("%s for %s: ", im.Name, strings.Join(names, ", "))
		delete(languages, im.Name)
		switch {
		case im.Template:
			text += fmt.Sprintf("built, %d MiB, with a template", im.SizeMB)
		case im.Ready:
			text += fmt.Sprintf("built, %d MiB, no template yet", im.SizeMB)
		default:
			if err == nil {
				_, err = of.Digest(image.Linux, image.HostArch())
			}
			if err == nil {
				text += "parts are here, not built yet"
			} else {
				text += "is fetched when it is first used"
			}
		}
		r.add("images", nil, text, "")
	}
	list, err := d.Images.List()
	var used map[string]bool
	if err == nil {
		used, _, err = d.Catalog.InUse(list)
	}
	if err != nil {
		r.add("images", err, "", "unitask image ls")
		return
	}
	var size int64
	nobodys := d.Catalog.Unused(list, used)
	for _, im := range nobodys {
		size += im.Size()
	}
	if len(nobodys) > 0 {
		r.add("images", nil, fmt.Sprintf("%d that no run has any more, %d MiB", len(nobodys), size>>20), "")
		r.Checks[len(r.Checks)-1].Remedy = "unitask image prune"
	}
}

// Ceiling adds the ceiling on models' runs to the report, and the ignored keys of its file.
func (r *Report) Ceiling(m *policy.ForModels, err error) {
	if err != nil {
		r.add("ceiling", err, "", "no run starts under this file: fix it")
		r.conclude(0)
		return
	}
	r.add("ceiling", nil, m.String(), "")
	r.Checks[len(r.Checks)-1].Remedy = m.Remedy()
	slow := slices.ContainsFunc(r.Accelerators, func(a AccelReport) bool { return a.OK && a.Accel == vmm.TCG })
	fast := slices.ContainsFunc(r.Accelerators, func(a AccelReport) bool { return a.OK && a.Accel != vmm.TCG })
	if got, _, err := policy.Resolve(policy.Request{}, m.Ceiling); err == nil && got.RequireHardware && slow && !fast {
		r.add("ceiling", errors.New("requireHardware is set, and this host has no hardware virtualization"), "",
			"take requireHardware out of "+m.File+", or see accel below")
		r.conclude(0)
	}
}

// checkClone restores the default template, and reports an earlier failure of one. It returns how long a clone took, 0
// if none was made.
func (d *Doctor) checkClone(ctx context.Context, r *Report, im *image.Image) (took time.Duration) {
	if !machine.CanClone {
		r.add("clone", nil, "not on this system: every run boots", "")
		return 0
	}
	spec, err := d.Source.Spec(ctx, im, machine.Class{MemoryMB: policy.DefaultMemoryMB})
	var m *machine.Machine
	var start time.Time
	if err == nil {
		start = time.Now()
		m, err = d.Source.Clone(ctx, spec, machine.Config{})
	}
	var given *machine.GivenUp
	switch {
	case err == nil:
		took = time.Since(start)
		m.Close()
		r.add("clone", nil, fmt.Sprintf("restored in %.2f s", took.Seconds()), "")
	case errors.As(err, &given):
		r.add("clone", err, "", "until then every run boots; unitask image build --warm tries at once")
		return 0
	case errors.Is(err, os.ErrNotExist):
		r.add("clone", nil, "no template yet: the first run has one made, unitask image build --warm makes it now", "")
	default:
		r.add("clone", err, "", "the template was dropped; the next run boots, and has another made")
	}
	if at, why := d.Source.LastFailure(); why != "" && time.Since(at) < failureTold {
		r.Checks[len(r.Checks)-1].Remedy = fmt.Sprintf("at %s one was dropped: %s", at.Format(time.RFC3339), why)
	}
	return took
}

// failureTold is how long the doctor reports a dropped template.
const failureTold = 24 * time.Hour

func (d *Doctor) checkKernel(r *Report, arch image.Arch, kernel image.Kernel) {
	part, err := d.Images.Parts().Get(arch, string(kernel))
	if d.addPart(r, "kernel", err, fmt.Sprintf("%s %s", kernel, part.Version)); err != nil {
		return
	}
	if kernel == image.Linux {
		c := &r.Checks[len(r.Checks)-1]
		c.Detail += ", in the place of nanos, which is not vendored"
		c.Remedy = "unitask image vendor --from DIR, where DIR holds a Nanos release"
	}
}

// writable checks the run store by creating and removing a folder in it.
func (d *Doctor) writable() error {
	if err := os.MkdirAll(d.Records.Dir(), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(d.Records.Dir(), ".doctor-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString("x")
	return errors.Join(err, f.Close())
}

// checkBoot boots the image once on each candidate.
func (d *Doctor) checkBoot(ctx context.Context, r *Report, spec machine.Spec) {
	candidates, rejected, err := vmm.ThisHost(spec.QEMU).Candidates(vmm.Arch(spec.Image.Arch), d.Accel)
	for _, no := range rejected {
		r.Accelerators = append(r.Accelerators, AccelReport{Accel: no.Accel, Reason: no.Reason})
	}
	var best *AccelReport
	var failed error
	for _, accel := range candidates {
		start := time.Now()
		spec.Accel = accel
		m, err := d.Source.BootOnce(ctx, spec, machine.Config{})
		report := AccelReport{Accel: accel, OK: err == nil}
		if err == nil {
			report.BootMs = time.Since(start).Milliseconds()
			jail := m.Jail()
			m.Close()
			if best == nil {
				best = &report
				d.Source.Works(spec, failed)
				r.add("boot", nil, fmt.Sprintf("%s in %.1f s on %s", spec.Image.Kernel, float64(report.BootMs)/1000, accel), "")
				r.jail(jail, d.RequireJail)
			}
		} else {
			report.Reason = err.Error()
			if !machine.Inconclusive(err) {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", accel, err))
			}
		}
		r.Accelerators = append(r.Accelerators, report)
	}
	if best == nil {
		if err == nil {
			err = errors.New("no accelerator boots the image")
		}
		r.add("boot", err, "", "see the reasons above; --accel tcg works wherever QEMU does, "+home.Dir(d.Home).Runs()+
			" has consoles")
	}
}
