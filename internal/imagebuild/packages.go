package imagebuild

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// This file adds packages of pip and npm to a container's image. The image's own pip or npm installs them, in a machine
// that reaches the registries of the host's configuration.

// printed reads a machine's output.
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

// parseSpecs parses a description's packages of pip or npm.
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

// installScripts start the programs that install packages, if the image has what they need.
var installScripts = map[string]string{
	policy.Pip: `command -v python3 >/dev/null || { echo 'ERROR: the image has no python3' >&2; exit 1; }
python3 -B -m pip --version >/dev/null || { echo 'ERROR: the image has no pip' >&2; exit 1; }
python3 -B /tmp/unitask/install </dev/null
`,
	policy.Npm: `command -v node >/dev/null || { echo 'npm error the image has no node' >&2; exit 1; }
command -v npm >/dev/null || { echo 'npm error the image has no npm' >&2; exit 1; }
node /tmp/unitask/install </dev/null
`,
}

// installLayers installs an image's packages of pip and npm, or uses the layers of an earlier build.
func (b *containerBuild) installLayers(ctx context.Context) error {
	same := b.now.sameBase(b.was) && b.now.Installed == b.was.Installed
	for _, of := range []struct {
		system string
		list   []string
	}{{policy.Pip, b.env.Pip}, {policy.Npm, b.env.Npm}} {
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
		for i, p := range b.was.Packages {
			if before == nil && p.System == of.system && slices.Equal(p.Asked, specs) {
				before = &b.was.Packages[i]
			}
		}
		if before != nil && same && b.hasLayer(before.Digest) {
			got = *before
		} else if err := b.installLayer(ctx, before, &got); err != nil {
			return err
		} else if before != nil && same && before.Digest != got.Digest {
			b.tellChanged("the packages of " + of.system + " are those of the lock file")
		}
		same = same && before != nil && before.Digest == got.Digest
		b.layers = append(b.layers, got.Digest)
		b.now.Packages = append(b.now.Packages, got)
	}
	return nil
}

// installLayer makes an image's own pip or npm install packages.
func (b *containerBuild) installLayer(ctx context.Context, before, got *lockedPackages) error {
	l := language.OfSystem(got.System)
	registry, routes, err := b.Installer.Registry(ctx, l.Packages, b.arch)
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
	c := change{what: "the packages", request: b.layerRequest(installScripts[got.System]), proxy: routes.Proxy,
		ceiling: b.Ceiling.Reaching()}
	c.request.AllowNet, c.request.AllowTCP, c.request.OutputBytes = routes.Nets, routes.TCPs, install.MaxLockText
	c.request.InlineFiles = []run.InlineFile{
		{Name: "plan.json", Content: string(text)},
		{Name: "install", Content: l.Packages.Program},
	}
	if p.CA {
		c.request.InlineFiles = append(c.request.InlineFiles, run.InlineFile{Name: "ca.pem", Content: registry.CA})
	}
	what, from := strings.Join(got.Asked, " "), packages.Shown(registry.URL)
	c.tell = fmt.Sprintf("installing %s from %s over %s, in a machine of its own", what, from, b.env.From)
	c.failed = func(res *run.Result) string {
		return fmt.Sprintf("%s: %s can't be installed over %s from %s: %s (`unitask inspect %s` has the rest)",
			got.System, what, b.env.From, from, b.Installer.ToolError(got.System, res), res.RunID)
	}
	c.printed = got.printed
	asked, system := got.Asked, got.System
	got.Digest, err = b.runLayer(ctx, b.base.Config, c)
	got.Asked, got.System = asked, system // whatever the machine reports
	return err
}
