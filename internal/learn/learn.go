// Package learn proposes a ceiling from the records of runs: the fewest lines that grant what the runs used. It reads
// the netlog and the calls of tools, and checks each recorded request against its proposal with the rules' own code.
//
// The code of the runs chose the names and paths in these records. So a proposed rule never allows more than the rule
// that allowed the request, and texts that can't be a rule are counted, not quoted. The package writes no file and
// starts nothing.
package learn

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Limits of what is learned at once.
const (
	// MaxRuns bounds the runs.
	MaxRuns      = 1000
	maxTargets   = 10_000    // different hosts, requests and tools of all runs
	maxChecks    = 100_000   // different requests of each run, in all, that the proposal is checked with
	maxLogBytes  = 512 << 20 // of each log of a run; a note says that the rest was not read
	maxLogLine   = 8 << 20   // bytes of a line; the rest of its log is not read
	maxHostRules = 32        // by method and path, of one host
	maxPathKnown = 300       // bytes; the netlog cuts longer paths, and longer names of tools are not read
	maxLeft      = 200       // lines about what was left out
	maxNamedRuns = 5         // in a comment
	maxCovers    = 5         // in a comment
)

// Options say what else is proposed.
type Options struct {
	// Refused adds what was refused because no rule allowed it.
	Refused bool
	// Private adds refused addresses that are not public: those of this host, of its network, and of clouds' metadata.
	Private bool
	// Servers are the tables of tools that the runs' ceiling had, by name.
	Servers map[string]*policy.ToolServer
}

// Line is a line of the proposal.
type Line struct {
	Key      string   `json:"key"`  // allowNet, ask, allowTcp, net.rule or tools
	Rule     string   `json:"rule"` // in the form of a request's rule; for tools the server's name
	Requests int      `json:"requests"`
	Covers   []string `json:"covers,omitempty"` // the hosts, paths or tools, if the rule does not name one alone
	Runs     []string `json:"runs"`
	Note     string   `json:"note,omitempty"`

	server *policy.ToolServer
}

// Left is something that the proposal does not allow.
type Left struct {
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Requests int      `json:"requests"`
	Runs     []string `json:"runs"`
}

// Proposal is a ceiling with its reasons.
type Proposal struct {
	Runs    []string `json:"runs"`
	Lines   []Line   `json:"lines"`
	Left    []Left   `json:"left,omitempty"`
	Unknown []string `json:"unknown,omitempty"` // what the records can't tell
	File    string   `json:"file"`              // the text of the ceiling
	Checked int      `json:"checked"`           // different requests and tools that the ceiling allows
	// Offline are the runs that connected to nothing: their replay repeats nothing outside of its machine.
	Offline []string `json:"offline"`
}

// ErrTooMuch means that the runs used more than a ceiling can list.
var ErrTooMuch = errors.New("the runs used more than a policy file can list")

// From reads the records of runs, and proposes a ceiling for them.
func From(store *record.Store, ids []string, opts Options) (*Proposal, error) {
	if len(ids) > MaxRuns {
		return nil, fmt.Errorf("%w: %d runs, and at most %d are read at once", ErrTooMuch, len(ids), MaxRuns)
	}
	l := newLearner(opts)
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			continue // else its requests would count twice
		}
		rec, err := store.Get(id)
		if err != nil {
			return nil, err
		}
		if err := l.read(store, rec); err != nil {
			return nil, fmt.Errorf("run %s: %w", id, err)
		}
	}
	return l.propose()
}

// source is a run that is read.
type source struct {
	id      string
	granted policy.Effective
	rules   []broker.Rule    // those by method and path
	used    map[request]bool // what its proposal is checked with
	// connected means that it did, or that this is not known.
	connected bool
}

// request is a connection (method "") or an HTTP request.
type request struct {
	key, host    string // host is a name or an address; for allowTcp the rule
	port         uint16
	method, path string
	refused      bool
}

// seen counts requests, and names their runs.
type seen struct {
	requests int
	runs     []string
}

func (s *seen) add(id string, n int) {
	s.requests += n
	if n := len(s.runs); n > 0 && s.runs[n-1] == id { // the lines of a run come one after the other
		return
	}
	if !slices.Contains(s.runs, id) {
		s.runs = append(s.runs, id)
	}
}

func (s *seen) join(o *seen) {
	s.requests += o.requests
	s.runs = slices.Concat(s.runs, o.runs)
	slices.Sort(s.runs)
	s.runs = slices.Compact(s.runs)
}

// netUse is a host that was connected to, as the rule allowed it.
type netUse struct {
	key    string // allowNet or ask
	host   policy.NetRule
	within policy.NetRule // the rule that allowed it; for what was refused the host itself
	denied bool           // it was refused
}

// httpUse is a request that was read.
type httpUse struct {
	host, method, path string
	within             string // the text of the rule by method and path, if one alone is about the host; else ""
}

type leftOut struct{ what, why string }

// learner collects what runs used.
type learner struct {
	opts    Options
	sources []*source
	nets    map[netUse]*seen
	forced  map[policy.NetRule]bool // wildcards of which one connection carried several names
	tcp     map[policy.TCPRule]*seen
	denied  map[policy.TCPRule]bool // some of them were refused
	http    map[httpUse]*seen
	unread  map[string]bool // hosts whose requests some runs did not read
	ruled   map[string]bool // hosts that rules by method and path restricted in some run
	tools   map[[2]string]*seen
	left    map[leftOut]*seen
	unknown []string
	checks  int // in used of all sources
}

func newLearner(opts Options) *learner {
	return &learner{opts: opts, nets: map[netUse]*seen{}, forced: map[policy.NetRule]bool{},
		tcp: map[policy.TCPRule]*seen{}, denied: map[policy.TCPRule]bool{}, http: map[httpUse]*seen{},
		unread: map[string]bool{}, ruled: map[string]bool{},
		tools: map[[2]string]*seen{}, left: map[leftOut]*seen{}}
}

// note counts requests under a key of a map. It returns false if there are too many keys.
func note[K comparable](l *learner, in map[K]*seen, key K, id string, n int) bool {
	s := in[key]
	if s == nil {
		if len(in) >= maxTargets {
			l.cannot(fmt.Sprintf("of more than %d different hosts, requests or tools, the others were not read", maxTargets))
			return false
		}
		s = &seen{}
		in[key] = s
	}
	s.add(id, n)
	return true
}

// leave notes what is left out, and why. what is a valid name, an address or our own words.
func (l *learner) leave(id string, n int, what, why string) {
	key := leftOut{what, why}
	if l.left[key] == nil && len(l.left) >= maxLeft {
		key = leftOut{"others", "there are too many to list"}
	}
	if l.left[key] == nil {
		l.left[key] = &seen{}
	}
	l.left[key].add(id, n)
}

// cannot notes what the records can't tell.
func (l *learner) cannot(why string) {
	if !slices.Contains(l.unknown, why) && len(l.unknown) < maxLeft {
		l.unknown = append(l.unknown, why)
	}
}

// read reads a run's record and logs.
func (l *learner) read(store *record.Store, rec *record.Record) error {
	src := &source{id: rec.ID, used: map[request]bool{}}
	l.sources = append(l.sources, src)
	if rec.Status == record.Running || rec.Status == record.Paused {
		src.connected = true
		l.cannot("run " + rec.ID + " is not over: what it does later is not known")
	}
	if rec.Session != "" && rec.Session != rec.ID {
		src.connected = true
		l.cannot("run " + rec.ID + " is a step: the record of its session, " + rec.Session + ", has the network")
	}
	if len(rec.Effective) == 0 || json.Unmarshal(rec.Effective, &src.granted) != nil {
		src.connected = true
		l.cannot("run " + rec.ID + " has no readable grants: nothing of it is proposed")
		return nil
	}
	src.rules = egress.BrokerRules(src.granted)
	if err := l.readNetlog(store, src); err != nil {
		return err
	}
	return l.readTools(store, src)
}

// inspected reports whether the broker read a run's requests to a name, and whether rules by method and path restrict
// them.
func (s *source) inspected(name string) (read, ruled bool) {
	host := policy.NetRule{Host: name}
	for _, r := range s.granted.AllowHTTP {
		if r.Concerns(host) {
			read, ruled = true, ruled || !r.Audit
		}
	}
	for _, secret := range s.granted.Secrets {
		read = read || slices.ContainsFunc(secret.Bindings(), func(b policy.Binding) bool {
			return policy.HTTPRule{Host: b.Host}.Concerns(host)
		})
	}
	return read, ruled
}

// within returns the rule by method and path that allowed a request, if one list has all rules about the host and they
// only allow. Then the rule may be proposed unchanged.
func (s *source) within(name, rule string) (text string) {
	set := -1
	for _, r := range s.granted.AllowHTTP {
		if !r.Concerns(policy.NetRule{Host: name}) {
			continue
		}
		if r.Deny || r.Audit || set >= 0 && r.Set != set {
			return ""
		}
		set = r.Set
		if r.Name() == rule {
			text = rule
		}
	}
	return text
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// notHere reports whether a name can only lead to a network that is not public.
func notHere(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return last == name || slices.Contains([]string{"internal", "local", "localhost", "localdomain", "lan", "home",
		"intranet", "corp", "private", "arpa"}, last)
}
