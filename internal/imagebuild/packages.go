package imagebuild

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
	"github.com/unitask/unitask/run"
)

// Packages of pip and npm over a container's image: its own pip or npm installs them, in a machine that reaches the
// registries which this host's are configured for.

// printed takes what a machine has printed.
func (p *lockedPackages) printed(out []byte) error {
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

// parseSpecs reads the packages that a description asks of a system for, in its own terms.
func parseSpecs(l *language.Language, system string, list []string) (specs []string, err error) {
	for _, text := range list {
		if err := l.CheckPackages([]string{system + ":" + text}); err != nil {
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
	return specs, nil
}

// installScripts start the programs that install packages, where the image has what they need.
var installScripts = map[string]string{
	policy.Pip: "command -v python3 >/dev/null || { echo 'ERROR: the image has no python3' >&2; exit 1; }\npython3 -B -m pip --version >/dev/null || { echo 'ERROR: the image has no pip' >&2; exit 1; }\npython3 -B /tmp/unitask/install </dev/null\n",
	policy.Npm: "command -v node >/dev/null || { echo 'npm error the image has no node' >&2; exit 1; }\ncommand -v npm >/dev/null || { echo 'npm error the image has no npm' >&2; exit 1; }\nnode /tmp/unitask/install </dev/null\n",
}

// installLayers installs an image's packages of pip and npm, or takes the layers that came of them.
func (b *Builder) installLayers(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, base *image.Container, was lockedLayer, now *lockedLayer) error {
	same := now.sameBase(was) && now.Installed == was.Installed
	for _, of := range []struct {
		system string
		list   []string
	}{{policy.Pip, env.Pip}, {policy.Npm, env.Npm}} {
		if len(of.list) == 0 {
			continue
		}
		specs, err := parseSpecs(language.OfSystem(of.system), of.system, of.list)
		if err != nil {
			return err
		}
		slices.Sort(specs)
		got := lockedPackages{System: of.system, Asked: specs}
		var before *lockedPackages
		if i := slices.IndexFunc(was.Packages, func(p lockedPackages) bool { return p.System == of.system && slices.Equal(p.Asked, specs) }); i >= 0 {
			before = &was.Packages[i]
		}
		if before != nil && same && b.hasLayer(before.Digest) {
			got = *before
		} else if err := b.installLayer(ctx, o, base, before, &got); err != nil {
			return err
		} else if before != nil && same && before.Digest != got.Digest {
			b.tell("the packages of " + of.system + " are those of the lock file, and have left other files than then")
		}
		same = same && before != nil && before.Digest == got.Digest
		o.Layers = append(o.Layers, got.Digest)
		o.Packages, o.System = append(o.Packages, got.Packages...), of.system
		now.Packages = append(now.Packages, got)
	}
	return nil
}

// installLayer has an image's own pip or npm install packages.
func (b *Builder) installLayer(ctx context.Context, o *catalog.Custom, base *image.Container, before, got *lockedPackages) error {
	l := language.OfSystem(got.System)
	registry, routes, err := b.Installer.Registry(ctx, l.Packages, o.Arch)
	if err != nil {
		return err
	}
	p := install.NewPlan(l.Packages.Place, registry, routes, got.Asked)
	if before != nil {
		p.Lock, p.Npm = before.Packages, before.Npm
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	c := change{what: "the packages", request: layerRequest(o, installScripts[got.System]), proxy: routes.Proxy, ceiling: b.Ceiling.Reaching()}
	c.request.AllowNet, c.request.AllowTCP, c.request.OutputBytes = routes.Nets, routes.TCPs, install.MaxLockText
	c.request.Neighbours = []run.Neighbour{{Name: "plan.json", Content: string(text)}, {Name: "install", Content: l.Packages.Program}}
	if p.CA {
		c.request.Neighbours = append(c.request.Neighbours, run.Neighbour{Name: "ca.pem", Content: registry.CA})
	}
	what := strings.Join(got.Asked, " ")
	c.tell = fmt.Sprintf("installing %s from %s over %s, in a machine of its own", what, packages.Shown(registry.URL), o.From)
	c.failed = func(res *run.Result) string {
		return fmt.Sprintf("%s: %s can't be installed over %s from %s: %s (`unitask inspect %s` has the rest)", got.System, what, o.From, packages.Shown(registry.URL), b.Installer.ToolError(got.System, res), res.RunID)
	}
	c.printed = got.printed
	asked, system := got.Asked, got.System
	got.Digest, err = b.runLayer(ctx, o, base, base.Config, c)
	got.Asked, got.System = asked, system // whatever the machine says
	return err
}
