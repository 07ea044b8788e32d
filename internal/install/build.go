package install

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/run"
)

// Plan tells the program in the machine what to install.
type Plan struct {
	Tool   string            `json:"tool"`
	Place  string            `json:"place"`
	URL    string            `json:"url"`
	More   []string          `json:"more,omitempty"`
	Scopes map[string]string `json:"scopes,omitempty"`
	Plain  []string          `json:"plain,omitempty"`
	CA     bool              `json:"ca,omitempty"`
	// authorities are variables that name a file of certificates, for programs that a package's build may start.
	Authorities []string           `json:"authorities"`
	Specs       []string           `json:"specs"`
	Lock        []packages.Package `json:"lock,omitempty"`
	Npm         json.RawMessage    `json:"npm,omitempty"`
}

// authorities are the variables for certificates of pip, requests, OpenSSL, curl, git, cargo, Node and npm.
var authorities = []string{"PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
	"CARGO_HTTP_CAINFO", "NODE_EXTRA_CA_CERTS", "npm_config_cafile"}

// NewPlan returns a plan to install packages from a registry, at a place in the guest.
func NewPlan(place string, registry *packages.Registry, routes Routes, asked []string) Plan {
	return Plan{Place: place, URL: registry.URL, More: registry.More, Scopes: registry.Scopes, CA: registry.CA != "",
		Authorities: authorities, Specs: asked, Plain: routes.Plain}
}

// build installs packages in a machine, and stores them. before, if not nil, lists exactly which.
func (i *installation) build(ctx context.Context, before *packages.Lock) error {
	what := strings.Join(i.want.Asked, " ")
	req, b, err := i.request(ctx, before)
	if err != nil {
		return err
	}
	where := "in a machine of its own"
	if i.to.Compilers != nil {
		where += " of the image " + i.to.Compilers.Name
	}
	i.to.tell(fmt.Sprintf("installing %s from %s, once, %s", what, i.want.Registry, where))
	start := time.Now()
	res, err := i.Run(ctx, i.to.Caller, catalog.Request{Request: req, Custom: i.to.Compilers}, b)
	if err != nil {
		return failure.At("packages", fmt.Errorf("install %s: %w", what, err))
	}
	if res.Outcome != run.OutcomeExited || res.ExitCode != 0 {
		return i.failed(res)
	}
	if err := i.keep(res); err != nil {
		return failure.At("packages", fmt.Errorf("keep %s: %w (`unitask inspect %s` has its record)", what, err, res.RunID))
	}
	if n := i.want.LeftOutMany; n > 0 {
		i.to.tell(fmt.Sprintf("left out %d links that lead out of the packages: %s", n, strings.Join(i.want.LeftOut, ", ")))
	}
	i.to.tell(fmt.Sprintf("installed %d packages, %d files of %d MiB, after %.0f s",
		len(i.want.Packages), i.want.Files, i.want.Bytes>>20, time.Since(start).Seconds()))
	return i.Records.Remove(res.RunID) // it has the files a second time
}

// request returns the machine's request.
func (i *installation) request(ctx context.Context, before *packages.Lock) (req run.Request, b *Build, err error) {
	l := i.to.Language
	routes, err := i.reach(ctx, i.registry)
	if err != nil {
		return req, nil, failure.At("packages", err)
	}
	p := NewPlan(image.At(l.Packages.Place, i.to.Runtime), i.registry, routes, i.want.Asked)
	p.Tool = "/tool/" + filepath.Base(i.tool)
	if before != nil {
		p.Lock, p.Npm = before.Packages, before.Npm
	}
	text, err := json.Marshal(p)
	if err != nil {
		return req, nil, err
	}
	req = run.Request{
		Code: l.Packages.Program, Image: l.FirstLike(i.to.Image), Kernel: image.Linux, Arch: i.to.Arch, Dir: "/work",
		Cold: true, Files: []run.Mount{{Host: i.tool, Guest: p.Tool}}, MemoryMB: MemoryMB, Timeout: Timeout,
		OutputBytes: OutputBytes, MaxArtifacts: packages.MaxBytes + 64<<20,
		MaxProcesses: MaxProcesses,
		RequireJail:  i.to.Jail, AllowNet: routes.Nets, AllowTCP: routes.TCPs,
	}
	if o := i.to.Compilers; o != nil {
		req.Image, req.Timeout = o.Name, CompileTime
	}
	req.InlineFiles = []run.InlineFile{{Name: "plan.json", Content: string(text)}}
	if p.CA {
		req.InlineFiles = append(req.InlineFiles, run.InlineFile{Name: "ca.pem", Content: i.registry.CA})
	}
	return req, &Build{Proxy: routes.Proxy}, nil
}

// keep stores what a machine has built.
func (i *installation) keep(res *run.Result) error {
	var said struct {
		Packages []packages.Package `json:"packages"`
		Npm      json.RawMessage    `json:"npm"`
	}
	lock, err := i.Records.OpenArtifact(res.RunID, "lock.json")
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := json.NewDecoder(io.LimitReader(lock, MaxLockText)).Decode(&said); err != nil {
		return fmt.Errorf("read the lock that the machine has written: %w", err)
	}
	if err := packages.CheckLocked(said.Packages); err != nil {
		return fmt.Errorf("the lock that the machine has written %w", err)
	}
	i.want.Packages, i.want.Npm = said.Packages, said.Npm
	files, err := i.Records.OpenArtifact(res.RunID, "packages.tar")
	if err != nil {
		return err
	}
	defer files.Close()
	if err := i.store.Add(i.want, files); err != nil {
		return err
	}
	i.Journal.Change(audit.PackagesAdded, map[string]any{"key": i.want.Key, "asked": i.want.Asked,
		"count": len(i.want.Packages), "registry": i.want.Registry})
	return nil
}
