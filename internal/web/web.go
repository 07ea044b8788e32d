// Package web fetches pages for web_fetch and `unitask web fetch`. A machine fetches each page, which is hostile, and
// turns it into Markdown there; this package never parses a page. It chooses the one host that each machine may reach,
// and checks what the machine returns. It also asks search backends for web_search and `unitask web search`, from this
// host, and reads their JSON. The command line and the MCP server call it.
package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/web"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Limits of a page.
const (
	MaxBytes = 4 << 20 // of its content
	maxHops  = 10      // redirects
	maxHosts = 4       // machines
	patience = 3 * time.Minute
	// maxDownload bounds what one machine receives: the largest PDF, and the requests around it.
	maxDownload = 32 << 20
	maxUpload   = 1 << 20 // bytes that one machine sends
	connections = 4
	// overhead is the most that a page has beside its content, in the machine's JSON, where a byte may need six.
	overhead = 1 << 20
	inJSON   = 6
	maxError = 500 // bytes of an error
)

// Forms lists how a page may be returned, the usual one first.
var Forms = []string{"markdown", "text", "html", "raw"}

// Request asks for a page.
type Request struct {
	URL      string
	As       string // one of Forms; "" is the first one
	MaxBytes int    // of the content; 0 is MaxBytes
	CA       string // PEM of certificates to trust beside the usual ones
}

// plan tells the program in the machine what to fetch.
type plan struct {
	URL       string `json:"url"`
	As        string `json:"as"`
	MaxBytes  int    `json:"maxBytes"`
	Redirects int    `json:"redirects"`
}

// Fetcher fetches pages for a caller.
type Fetcher struct {
	// Run runs a request in a machine of its own.
	Run func(ctx context.Context, req run.Request) (*run.Result, error)
	// Ceiling limits each run; nil is no limit.
	Ceiling *policy.Ceiling
	// Hosts limits the hosts further, beside that of the first URL; nil is no limit.
	Hosts *Hosts
	// SameHost refuses redirects to other hosts.
	SameHost bool
	// Refused, if not nil, is told about a request that got no machine.
	Refused func(err error, req run.Request)
	// Prepare, if not nil, changes each run's request: questions in place of grants, and the jail.
	Prepare func(req *run.Request)
}

// Hosts are the hosts that the flags of a command line allow, as `unitask run` has them.
type Hosts struct {
	AllowNet, Ask []string
	Any           bool
}

// DeniedError means that a host may not be asked for a page.
type DeniedError struct {
	URL      string // that was denied
	Host     string // in the policy's form
	Redirect bool   // another host named the URL
	Reason   string // "" if no flag allows it
}

func (e *DeniedError) Error() string {
	text := e.Host + " " + cmp.Or(e.Reason, "is not allowed")
	if e.Redirect {
		return fmt.Sprintf("the page redirects to %s, and %s", quoted(e.URL, 300), text)
	}
	return text
}

// Fetch returns a page. It follows redirects. A machine follows those within a host; a redirect to another host gets
// another machine, if the policy allows that host.
func (f *Fetcher) Fetch(ctx context.Context, in Request) (*Page, error) {
	in.As = cmp.Or(in.As, Forms[0])
	in.MaxBytes = cmp.Or(in.MaxBytes, MaxBytes)
	switch {
	case !slices.Contains(Forms, in.As):
		return nil, policy.Bad("as", fmt.Sprintf("%.40q", in.As), "use %s", strings.Join(Forms, ", "))
	case in.MaxBytes < 1 || in.MaxBytes > MaxBytes:
		return nil, policy.Bad("maxBytes", fmt.Sprint(in.MaxBytes), "must be from 1 to %d", MaxBytes)
	case !f.Ceiling.WebFetch():
		if f.Refused != nil {
			f.Refused(errForbidden, run.Request{WebFetch: true, Image: policy.WebImage})
		}
		return nil, policy.Bad("webFetch", "of "+bounded.Text(in.URL, 80), "no ceiling allows it: webFetch = true does")
	}
	at, err := parse(in.URL)
	if err != nil {
		return nil, policy.Bad("url", fmt.Sprintf("%.200q", in.URL), "%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for hops, hosts := 0, 0; ; hosts++ {
		if hosts == maxHosts {
			return nil, fmt.Errorf("the redirects lead to more than %d hosts", maxHosts)
		}
		page, err := f.hop(ctx, in, at, maxHops-hops, hosts > 0)
		if err != nil {
			return nil, err
		}
		if hops += page.Redirects; page.redirect == nil {
			page.Redirects = hops
			return page, nil
		}
		if hops++; hops > maxHops {
			return nil, fmt.Errorf("there are more than %d redirects (run %s)", maxHops, page.RunID)
		}
		at = page.redirect
	}
}

// hop fetches a page from one host, in a machine that reaches only that host.
func (f *Fetcher) hop(ctx context.Context, in Request, at *target, redirects int, redirect bool) (*Page, error) {
	text, err := json.Marshal(plan{URL: at.url, As: in.As, MaxBytes: in.MaxBytes, Redirects: redirects})
	if err != nil {
		return nil, err
	}
	req := run.Request{
		Code: web.Program, Language: "python", Image: policy.WebImage, Kernel: run.Linux, Args: []string{string(text)},
		CA: in.CA, WebFetch: true, AllowNet: []string{at.rule}, MaxConnections: connections, MaxUpload: maxUpload,
		MaxDownload: maxDownload, OutputBytes: int64(inJSON*in.MaxBytes + overhead), MaxArtifacts: -1,
	}
	if f.Prepare != nil {
		f.Prepare(&req)
	}
	if err := f.allow(&req, at, redirect); err != nil {
		if f.Refused != nil {
			f.Refused(err, req)
		}
		return nil, err
	}
	res, err := f.Run(ctx, req)
	if err != nil {
		return nil, err
	}
	if res.Outcome != run.OutcomeExited || res.ExitCode != 0 {
		return nil, failed(res, cmp.Or(res.Error, "the program that reads pages has failed"))
	}
	page, reason := read(res.Stdout, at, in)
	switch {
	case res.Truncated:
		return nil, failed(res, "it is longer than outputBytes of the ceiling")
	case reason != "":
		return nil, failed(res, reason)
	}
	page.RunID = res.RunID
	return page, nil
}

// allow cuts a run's hosts to the flags and the ceiling. It returns an error if none is left.
func (f *Fetcher) allow(req *run.Request, at *target, redirect bool) error {
	denied := &DeniedError{URL: at.url, Host: at.rule, Redirect: redirect}
	if redirect && f.SameHost {
		denied.Reason = "is not a host that the call names: fetch that URL"
		return denied
	}
	if f.Hosts != nil {
		eff, err := f.Hosts.narrow(at.rule)
		switch {
		case err != nil:
			return err
		case redirect && len(eff.AllowNet)+len(eff.Ask) == 0:
			return denied
		case redirect || len(eff.Ask) > 0:
			req.AllowNet, req.Ask = policy.Asked(eff).AllowNet, policy.Asked(eff).Ask
		}
	}
	eff, denials, err := policy.Resolve(policy.Asked(*req), f.Ceiling)
	if err != nil {
		return err
	}
	for _, d := range denials {
		if d.Field == "allowNet" || d.Field == "ask" || d.Field == "webFetch" {
			denied.Reason = fmt.Sprintf("%s by %s (key %s)", d.Reason, d.Rule, d.Key)
		}
	}
	if len(eff.AllowNet)+len(eff.Ask) == 0 || !eff.WebFetch {
		return denied
	}
	return nil
}

// narrow returns what the flags allow of a host. They bound it as the same keys of a ceiling would.
func (h *Hosts) narrow(rule string) (policy.Effective, error) {
	asked := policy.Request{AllowNet: h.AllowNet, Ask: h.Ask, AllowNetAny: h.Any}
	if _, _, err := policy.Resolve(asked, nil); err != nil {
		return policy.Effective{}, err
	}
	text := fmt.Sprintf("allowNetAny = %v\nallowNet = %s\nask = %s\n", h.Any, list(h.AllowNet), list(h.Ask))
	flags, err := policy.ParseCeiling("the flags", []byte(text))
	if err != nil {
		return policy.Effective{}, err
	}
	eff, _, err := policy.Resolve(policy.Request{AllowNet: []string{rule}}, flags)
	return eff, err
}

// list returns hosts, which are checked, as a list of TOML.
func list(hosts []string) string {
	quoted := make([]string, len(hosts))
	for i, host := range hosts {
		quoted[i] = strconv.Quote(host)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

var errForbidden = errors.New("webFetch is not allowed")

// failed returns the error of a run that returned no page. The run's hints say what the network refused.
func failed(res *run.Result, reason string) error {
	for _, h := range res.Hints {
		if h.Kind == run.HintConnection || h.Kind == run.HintApproval {
			reason += "; " + h.Text
		}
	}
	return errors.New(reason + " (run " + res.RunID + ")")
}
