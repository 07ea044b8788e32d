package unitask

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/policy"
)

// Packages of pip and npm over a container's image: its own pip or npm installs them, in a machine that reaches the
// registries which this host's are configured for.

// ownInstalled says in a lock file what one of them has installed.
type ownInstalled struct {
	System   string             `json:"system"` // pip or npm
	Asked    []string           `json:"asked"`
	Packages []packages.Package `json:"packages"`
	Npm      json.RawMessage    `json:"npm,omitempty"`
	Digest   string             `json:"digest"` // of the layer
}

// same says that another build has the same layer of it.
func (p ownInstalled) same(other ownInstalled) bool {
	return p.System == other.System && p.Digest == other.Digest
}

// check says what is wrong with what others have written.
func (p *ownInstalled) check() error {
	if err := packages.CheckLocked(p.Packages); err != nil {
		return err
	}
	return packages.CheckNpm(p.Npm)
}

// printed takes what a machine has printed.
func (p *ownInstalled) printed(out []byte) error {
	_, line, found := bytes.Cut(out, []byte("unitask: lock "))
	if !found {
		return errors.New("the machine has not said what was installed")
	}
	if err := json.NewDecoder(bytes.NewReader(line)).Decode(p); err != nil {
		return fmt.Errorf("read the lock that the machine has written: %w", err)
	}
	if err := p.check(); err != nil {
		return fmt.Errorf("the lock that the machine has written %w", err)
	}
	return nil
}

// overSpecs are the packages that a description asks of a system for, in its own terms.
func overSpecs(system string, list []string) (specs []string, err error) {
	for _, text := range list {
		if err := language.OfSystem(system).CheckPackages([]string{system + ":" + text}); err != nil {
			var field *policy.FieldError
			if errors.As(err, &field) {
				err = fmt.Errorf("%s: %s %s", system, field.Value, field.Reason)
			}
			return nil, err
		}
		rule, err := policy.ParsePackage(system + ":" + text)
		if err != nil {
			return nil, err
		}
		specs = append(specs, rule.Spec())
	}
	slices.Sort(specs)
	return specs, nil
}

// overScripts start the programs that install packages, where the image has what they need.
var overScripts = map[string]string{
	policy.Pip: "command -v python3 >/dev/null || { echo 'ERROR: the image has no python3' >&2; exit 1; }\npython3 -B -m pip --version >/dev/null || { echo 'ERROR: the image has no pip' >&2; exit 1; }\npython3 -B /tmp/unitask/install </dev/null\n",
	policy.Npm: "command -v node >/dev/null || { echo 'npm error the image has no node' >&2; exit 1; }\ncommand -v npm >/dev/null || { echo 'npm error the image has no npm' >&2; exit 1; }\nnode /tmp/unitask/install </dev/null\n",
}

// installOver installs an image's packages of pip and npm, or takes the layers that came of them.
func (rt *Runtime) installOver(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, base *image.Container, was ownLayer, now *ownLayer) error {
	same := now.sameBase(was) && now.Installed == was.Installed
	for _, of := range []struct {
		system string
		list   []string
	}{{policy.Pip, env.Pip}, {policy.Npm, env.Npm}} {
		if len(of.list) == 0 {
			continue
		}
		specs, err := overSpecs(of.system, of.list)
		if err != nil {
			return err
		}
		got := ownInstalled{System: of.system, Asked: specs}
		var before *ownInstalled
		if i := slices.IndexFunc(was.Packages, func(p ownInstalled) bool { return p.System == of.system && slices.Equal(p.Asked, specs) }); i >= 0 {
			before = &was.Packages[i]
		}
		if before != nil && same && rt.hasLayer(before.Digest) {
			got = *before
		} else if err := rt.installInto(ctx, o, base, before, &got); err != nil {
			return err
		} else if before != nil && same && before.Digest != got.Digest {
			rt.opts.Events(Event{Kind: EventImage, Message: "the packages of " + of.system + " are those of the lock file, and have left other files than then"})
		}
		same = same && before != nil && before.Digest == got.Digest
		o.Layers = append(o.Layers, got.Digest)
		o.Packages, o.System = append(o.Packages, got.Packages...), of.system
		now.Packages = append(now.Packages, got)
	}
	return nil
}

// installInto has an image's own pip or npm install packages.
func (rt *Runtime) installInto(ctx context.Context, o *catalog.Custom, base *image.Container, before, got *ownInstalled) error {
	l := language.OfSystem(got.System)
	registry, err := install.HostRegistry(l.Packages, func() (string, error) {
		tool, _, err := rt.images.Tool(ctx, o.Arch, l.Packages.Tool)
		return tool, err
	})
	if err != nil {
		return err
	}
	way, err := rt.installer().Reach(ctx, registry)
	if err != nil {
		return err
	}
	p := install.Plan{Place: l.Packages.Place, URL: registry.URL, More: registry.More, Scopes: registry.Scopes, CA: registry.CA != "",
		Authorities: install.Authorities, Specs: got.Asked, Plain: way.Plain}
	if before != nil {
		p.Lock, p.Npm = before.Packages, before.Npm
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	c := change{what: "the packages", request: changes(o, overScripts[got.System]), proxy: way.Proxy, ceiling: rt.opts.Ceiling.Reaching()}
	c.request.AllowNet, c.request.AllowTCP, c.request.OutputBytes = way.Nets, way.TCPs, install.MaxLockText
	c.request.Neighbours = []Neighbour{{Name: "plan.json", Content: string(text)}, {Name: "install", Content: l.Packages.Program}}
	if p.CA {
		c.request.Neighbours = append(c.request.Neighbours, Neighbour{Name: "ca.pem", Content: registry.CA})
	}
	what := strings.Join(got.Asked, " ")
	c.tell = fmt.Sprintf("installing %s from %s over %s, in a machine of its own", what, packages.Shown(registry.URL), o.From)
	c.failed = func(res *Result) string {
		return fmt.Sprintf("%s: %s can't be installed over %s from %s: %s (`unitask inspect %s` has the rest)", got.System, what, o.From, packages.Shown(registry.URL), rt.installer().ToolError(got.System, res), res.RunID)
	}
	c.printed = got.printed
	asked, system := got.Asked, got.System
	got.Digest, err = rt.change(ctx, o, base, base.Config, c)
	got.Asked, got.System = asked, system // whatever the machine says
	return err
}
