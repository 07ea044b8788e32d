package imagebuild

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// This file runs a build's steps. They are foreign code, which runs as the image's root in a separate machine, and
// changes the image. Each machine leaves a layer.

// machinePaths are a machine's own paths, which no layer has.
const machinePaths = contract.LayerWithout

const (
	maxLayer        = 2 << 30 // bytes of a layer
	maxLayerEntries = 200_000
	maxStepShown    = 80 // bytes of a step in messages
)

// change is a change of an image by a machine.
type change struct {
	what    string // for messages: the steps
	tell    string // the message when the machine starts
	request run.Request
	proxy   func(host string, port uint16) *url.URL
	ceiling *policy.Ceiling          // of its network
	timed   bool                     // files keep their times
	failed  func(*run.Result) string // returns why it failed
	printed func([]byte) error       // reads its output, if not nil
}

// layerOfSteps uses the steps' layer of an earlier build, or runs the steps.
func (b *containerBuild) layerOfSteps(ctx context.Context, config oci.Config) (err error) {
	if len(b.env.Run) == 0 {
		return nil
	}
	same := b.now.same(b.was)
	if same && b.hasLayer(b.was.Digest) {
		b.now.Digest = b.was.Digest
	} else if b.now.Digest, err = b.runSteps(ctx, config); err != nil {
		return err
	} else if same && b.was.Digest != "" && b.was.Digest != b.now.Digest {
		b.tellChanged("the steps are those of " + b.lock)
	}
	b.layers = append(b.layers, b.now.Digest)
	return nil
}

// runSteps runs steps over an image, and stores their changes as a layer, whose digest it returns.
func (b *containerBuild) runSteps(ctx context.Context, config oci.Config) (string, error) {
	steps := b.env.Run
	c := change{what: "the steps", timed: true, ceiling: b.Ceiling.Reaching()}
	c.request = b.layerRequest(stepsScript(b.base.Config.Dir, steps))
	var err error
	if c.proxy, err = b.network.configure(ctx, b.Installer, &c.request); err != nil {
		return "", fmt.Errorf("run the steps of %s: %w", b.env.File, err)
	}
	c.tell = fmt.Sprintf("running %d steps over %s, in a machine of its own%s", len(steps), b.env.From, b.network)
	c.failed = func(res *run.Result) string { return stepFailed(steps, res, b.Installer.DeniedHosts(res.RunID)) }
	return b.runLayer(ctx, config, c)
}

// layerRequest returns a request for a script that changes an image.
func (b *build) layerRequest(script string) run.Request {
	return run.Request{
		Code: script, Language: "shell", Kernel: image.Linux, Arch: b.arch, Dir: "/tmp/unitask", Cold: true,
		MemoryMB: max(install.MemoryMB, b.env.MemoryMB), Timeout: install.Timeout, OutputBytes: install.OutputBytes,
		MaxArtifacts: maxLayer, MaxProcesses: install.MaxProcesses,
	}
}

// runLayer runs a script as root on the image so far, and stores the changes as a layer, whose digest it returns.
func (b *containerBuild) runLayer(ctx context.Context, config oci.Config, c change) (string, error) {
	config.Entrypoint, config.Cmd, config.User = nil, nil, ""
	under, err := b.derive(ctx, config)
	if err != nil {
		return "", err
	}
	if len(under.Names) == 0 {
		defer func() { _ = b.Catalog.Images.Containers().Remove(context.WithoutCancel(ctx), under) }()
	}
	req := c.request
	req.Image, req.RequireJail = under.Digest, b.RequireJail
	b.tell(c.tell)
	start := time.Now()
	res, err := b.Installer.Run(ctx, run.Caller{Ceiling: c.ceiling}, catalog.Request{Request: req},
		&install.Build{Proxy: c.proxy, Layer: true})
	if err != nil {
		return "", fmt.Errorf("run %s of %s: %w", c.what, b.env.File, err)
	}
	if res.Outcome != run.OutcomeExited || res.ExitCode != 0 {
		return "", policy.Bad("image", b.env.File, "%s", c.failed(res))
	}
	if c.printed != nil {
		if err := c.printed(res.Stdout); err != nil {
			return "", fmt.Errorf("%w (`unitask inspect %s` has its record)", err, res.RunID)
		}
	}
	limits := oci.Limits{Bytes: maxLayer, Entries: maxLayerEntries}
	if !c.timed {
		limits.Since = start.Truncate(time.Second).Add(-time.Second)
	}
	entries := 0
	digest, err := b.storeLayer(func(to io.Writer) (digest string, err error) {
		made, err := b.Catalog.Records.OpenArtifact(res.RunID, contract.LayerFile)
		if err != nil {
			for _, r := range res.ArtifactsRefused {
				err = fmt.Errorf("what they changed %s", r.Reason)
			}
			return "", err
		}
		defer made.Close()
		digest, entries, err = oci.CopyLayer(ctx, to, made, limits, strings.Split(machinePaths, ":"), contract.LayerEnd)
		return digest, err
	})
	if err != nil {
		return "", fmt.Errorf("keep what %s of %s changed: %w (`unitask inspect %s` has their output)",
			c.what, b.env.File, err, res.RunID)
	}
	b.tell(fmt.Sprintf("%s changed %d files, after %.0f s", c.what, entries, time.Since(start).Seconds()))
	return digest, b.Catalog.Records.Remove(res.RunID) // it has the layer a second time
}

// stepsScript runs steps one after the other, each in a separate shell, until one fails.
func stepsScript(dir string, steps []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cd %s || exit\n", shellQuote("/"+dir))
	for i, step := range steps {
		fmt.Fprintf(&b, "sh -c %s </dev/null\ncode=$?\n"+
			"[ $code -eq 0 ] || { echo \"unitask: step %d ended with exit code $code\" >&2; exit 1; }\n", shellQuote(step), i+1)
	}
	return b.String()
}

func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

var stepEnd = regexp.MustCompile(`unitask: step ([0-9]{1,3}) ended with exit code ([0-9]{1,3})\n$`)

// stepFailed names the step that has failed, and its last output.
func stepFailed(steps []string, res *run.Result, refused string) string {
	what := "the steps"
	text := string(res.Stderr)
	if end := stepEnd.FindStringSubmatch(text); end != nil {
		text = strings.TrimSuffix(text, end[0])
		n := 0
		if _, err := fmt.Sscan(end[1], &n); err == nil && n >= 1 && n <= len(steps) {
			what = fmt.Sprintf("step %d of run (%.*q) ended with exit code %s", n, maxStepShown, steps[n-1], end[2])
		}
	} else if res.Error != "" {
		what = "the steps of run: " + res.Error
	} else {
		what = fmt.Sprintf("the steps of run ended with exit code %d", res.ExitCode)
	}
	return fmt.Sprintf("%s: %q%s (`unitask inspect %s` has the rest)", what, ended(text, res), refused, res.RunID)
}

// lastSaid returns the end of a run's output.
func lastSaid(res *run.Result) string { return ended(string(res.Stderr), res) }

func ended(text string, res *run.Result) string {
	if strings.TrimSpace(text) == "" {
		text = string(res.Stdout)
	}
	if text = strings.TrimSpace(text); len(text) > install.MaxToolError {
		text = "…" + text[len(text)-install.MaxToolError:]
	}
	return strings.ToValidUTF8(text, "\ufffd")
}
