package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/unitask/unitask/internal/httppath"
)

// HTTPRule is one --allow-http, or one [[net.rule]] of a ceiling: which requests a host may receive. A host
// without rules may receive any.
type HTTPRule struct {
	// Set is 0 for the run's own rules. Each other number stands for the rules of one ceiling: every set must allow a
	// request.
	Set int
	// Deny forbids the requests that the rule matches, whatever other rules allow.
	Deny bool
	// Audit permits what the rule would refuse, and logs it in the netlog.
	Audit bool
	// Methods are the rule's methods, in upper case, sorted and joined by commas; "" means all. GET covers HEAD.
	Methods string
	Host    NetRule // a name or *.DOMAIN
	Path    string  // a pattern of httppath; "" means every path
}

const (
	wordAudit = "audit "
	wordDeny  = "deny "
	// allMethods stands for every method.
	allMethods = "*"
	// maxMethods bounds the methods of one rule.
	maxMethods = 32
	// maxHTTPRules bounds the rules of a run: its own and those of the ceilings above it.
	maxHTTPRules = 8 * MaxRules
)

// ParseHTTPRule parses [N: ][audit ][deny ]METHOD[,METHOD…] HOST[/PATH]; METHOD is * for all.
func ParseHTTPRule(s string) (r HTTPRule, err error) {
	if number, rest, ok := strings.Cut(s, ": "); ok {
		if r.Set, err = strconv.Atoi(number); err != nil || r.Set < 1 || r.Set > maxHTTPRules ||
			strconv.Itoa(r.Set) != number {
			return HTTPRule{}, errors.New("has a number before it that is none")
		}
		s = rest
	}
	s, r.Audit = strings.CutPrefix(s, wordAudit)
	s, r.Deny = strings.CutPrefix(s, wordDeny)
	methods, target, ok := strings.Cut(s, " ")
	if !ok || strings.Contains(target, " ") {
		return HTTPRule{}, errors.New("is not METHOD HOST/PATH: write 'GET api.example.com/v1/*', with * for every method")
	}
	if r.Methods, err = parseMethods(methods); err != nil {
		return HTTPRule{}, err
	}
	if target, _, err = withoutScheme(target); err != nil {
		return HTTPRule{}, fmt.Errorf("has a host that %w", err)
	}
	host := target
	if i := strings.IndexByte(target, '/'); i >= 0 {
		host, r.Path = target[:i], target[i:]
	}
	if r.Host, err = ParseNetRule(host); err != nil {
		return HTTPRule{}, fmt.Errorf("has a host %s that %w", quoted(host), err)
	}
	if r.Host.Addr.IsValid() || r.Host.Port != 0 {
		return HTTPRule{}, fmt.Errorf("has a host %.100q that is no host name: use a name without a port", host)
	}
	if err := httppath.Check(r.Path); err != nil {
		path, _, _ := strings.Cut(r.Path, "?")
		return HTTPRule{}, fmt.Errorf("has a path %.100q that %w", path, err)
	}
	return r, nil
}

func parseMethods(text string) (string, error) {
	if text == allMethods {
		return "", nil
	}
	list := strings.Split(text, ",")
	if len(list) > maxMethods {
		return "", fmt.Errorf("has %d methods: %d is the most", len(list), maxMethods)
	}
	for _, m := range list {
		if m == "" || len(m) > maxMethods || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") != "" {
			return "", fmt.Errorf("has a method %.40q: write it in upper case, or * for every one", m)
		}
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ","), nil
}

// Listed returns the methods; an empty list means all.
func (r HTTPRule) Listed() []string {
	if r.Methods == "" {
		return nil
	}
	return strings.Split(r.Methods, ",")
}

// Name returns the rule's name in refusals and in the netlog: its text.
func (r HTTPRule) Name() string {
	r.Set = 0
	return r.String()
}

// String returns the form that ParseHTTPRule reads.
func (r HTTPRule) String() string {
	text := ""
	if r.Set > 0 {
		text = strconv.Itoa(r.Set) + ": "
	}
	if r.Audit {
		text += wordAudit
	}
	if r.Deny {
		text += wordDeny
	}
	methods := r.Methods
	if methods == "" {
		methods = allMethods
	}
	return text + methods + " " + r.Host.String() + r.Path
}

// MarshalText returns String's form.
func (r HTTPRule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses like ParseHTTPRule.
func (r *HTTPRule) UnmarshalText(text []byte) (err error) {
	*r, err = ParseHTTPRule(string(text))
	return err
}

// covers reports whether the rule matches every request that another one matches.
func (r HTTPRule) covers(o HTTPRule) bool {
	host, ok := r.Host.intersect(o.Host)
	if !ok || host != o.Host || !httppath.Covers(r.Path, o.Path) {
		return false
	}
	if r.Methods == "" {
		return true
	}
	mine := r.Listed()
	return o.Methods != "" && !slices.ContainsFunc(o.Listed(), func(m string) bool {
		return !slices.Contains(mine, m) && (m != "HEAD" || !slices.Contains(mine, "GET"))
	})
}

// Concerns reports whether the rule matches a host that a network rule allows, on any port.
func (r HTTPRule) Concerns(host NetRule) bool {
	host.Port = 0
	_, overlap := r.Host.intersect(host)
	return overlap
}

// allows reports whether the rule allows some requests and so forbids others.
func (r HTTPRule) allows() bool { return !r.Deny && !r.Audit }

// HTTPHosts returns the hosts of allowing rules, in NetRule's form, unless the request names them elsewhere. A request
// for some methods and paths of a named host implies that the host may be reached. A URL implies this for the port of
// its scheme only. Resolve reports invalid rules.
func HTTPHosts(r Request) (hosts []string) {
	for _, text := range r.AllowHTTP {
		rule, err := ParseHTTPRule(text)
		implied := rule.Host
		if _, port, _ := withoutScheme(text[strings.LastIndexByte(text, ' ')+1:]); port != "" {
			n, _ := strconv.ParseUint(port, 10, 16)
			implied.Port = uint16(n)
		}
		there := func(other string) bool {
			o, err := ParseNetRule(other)
			both, ok := implied.intersect(o)
			return err == nil && ok && both == implied
		}
		known := func(other string) bool {
			o, err := ParseNetRule(other)
			o.Port = 0
			host, ok := rule.Host.intersect(o)
			return err == nil && ok && host == rule.Host
		}
		raw := func(other string) bool {
			o, err := ParseTCPRule(other)
			return err == nil && o.Host != "" && o.Host == rule.Host.Host
		}
		if err != nil || rule.Deny || r.AllowNetAny || slices.ContainsFunc(r.AllowNet, known) ||
			slices.ContainsFunc(r.AllowTCP, raw) || slices.ContainsFunc(hosts, there) {
			continue
		}
		hosts = append(hosts, implied.String())
	}
	return hosts
}

// httpRules are rules by method and path. A ceiling adds its rules to the run's as a separate set: each further
// set narrows the allowed requests.
type httpRules struct{ none }

func (httpRules) form() Form { return List }

func (httpRules) list(texts []string) ([]HTTPRule, *FieldError) {
	if len(texts) > maxHTTPRules {
		return nil, &FieldError{Value: fmt.Sprintf("of %d entries", len(texts)),
			Reason: fmt.Sprintf("must have at most %d", maxHTTPRules)}
	}
	out := []HTTPRule{}
	for _, text := range texts {
		rule, err := ParseHTTPRule(text)
		if err != nil {
			return nil, refused(text, err)
		}
		if !slices.Contains(out, rule) {
			out = append(out, rule)
		}
	}
	return out, nil
}

func (k httpRules) resolve(f *Field, r *Request, e *Effective) error {
	list, bad := k.list(*at[[]string](r, f.Key))
	if bad != nil {
		bad.Field = f.name()
		return bad
	}
	*at[[]HTTPRule](e, f.Key) = list
	return nil
}

// read reads the rules from [[net.rule]].
func (k httpRules) read(_ *Field, value any, _ string) (any, error) {
	table, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("is a %s: use [[net.rule]]", tomlType(value))
	}
	var tables []map[string]any
	for key, list := range table {
		list, ok := list.([]map[string]any)
		if key != "rule" || !ok {
			return nil, fmt.Errorf("holds %.40q: use [[net.rule]] with host, method, path, action and mode", key)
		}
		tables = list
	}
	var texts []string
	for i, t := range tables {
		text, err := httpRuleText(t)
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
		texts = append(texts, text)
	}
	if len(texts) > MaxRules {
		return nil, fmt.Errorf("%d rules: must have at most %d", len(texts), MaxRules)
	}
	list, bad := k.list(texts)
	if bad != nil {
		return nil, fmt.Errorf("rule %s: %s", bad.Value, bad.Reason)
	}
	return list, nil
}

// httpRuleText returns a rule's table in the form that ParseHTTPRule reads.
func httpRuleText(t map[string]any) (string, error) {
	word := func(key, usual string, other ...string) (string, error) {
		value, ok := t[key]
		if !ok {
			return usual, nil
		}
		text, ok := value.(string)
		switch {
		case !ok:
			return "", fmt.Errorf("%s is a %s, and must be a string", key, tomlType(value))
		case len(other) > 0 && text != usual && !slices.Contains(other, text):
			return "", fmt.Errorf("%s %.40q: use %s or %s", key, text, usual, strings.Join(other, " or "))
		case strings.ContainsAny(text, " ,") && key != "path":
			return "", fmt.Errorf("%s %s is no single one", key, quoted(withoutLogin(text)))
		}
		return text, nil
	}
	for key := range t {
		if !slices.Contains([]string{"host", "method", "path", "action", "mode"}, key) {
			return "", fmt.Errorf("unknown key %.40q: use host, method, path, action and mode", key)
		}
	}
	methods := allMethods
	var errs []error
	if list, ok := t["method"].([]any); ok {
		texts, err := stringList(list)
		if len(texts) == 0 && err == nil {
			err = errors.New("method is empty: leave it out for every one")
		}
		methods, errs = strings.Join(texts, ","), append(errs, err)
	} else {
		var err error
		methods, err = word("method", allMethods)
		errs = append(errs, err)
	}
	host, err1 := word("host", "")
	path, err2 := word("path", "")
	host, _, err5 := withoutScheme(strings.TrimSuffix(host, "/"))
	action, err3 := word("action", "allow", "deny")
	mode, err4 := word("mode", "enforce", "audit")
	if err := errors.Join(append(errs, err1, err2, err3, err4, err5)...); err != nil {
		return "", err
	}
	switch {
	case host == "":
		return "", errors.New("has no host")
	case strings.Contains(host, "/"):
		return "", fmt.Errorf("host %s: the path is a key of its own", quoted(withoutLogin(host)))
	case path != "" && path[0] != '/':
		return "", fmt.Errorf("path %.100q: does not begin with a slash", path)
	}
	text := methods + " " + host + path
	if action == "deny" {
		text = wordDeny + text
	}
	if mode == "audit" {
		text = wordAudit + text
	}
	return text, nil
}

// narrow adds the ceiling's rules, unless they are already a set. It reports which of the run's rules exceed
// them.
func (httpRules) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, deny deny) {
	top, _ := c.most[f.ceiling()].([]HTTPRule)
	granted := at[[]HTTPRule](e, f.Key)
	if len(top) == 0 {
		return
	}
	sets := map[int][]HTTPRule{}
	last := 0
	for _, r := range *granted {
		set := r.Set
		last, r.Set = max(last, set), 0
		sets[set] = append(sets[set], r)
	}
	for _, set := range sets {
		if slices.Equal(set, top) {
			return
		}
	}
	for _, r := range sets[0] {
		if !r.Deny {
			beyondTop(r, top, deny)
		}
	}
	for _, r := range top {
		r.Set = last + 1
		*granted = append(*granted, r)
	}
}

// beyondTop denies the part of an allowing rule that a ceiling's rules do not allow.
func beyondTop(r HTTPRule, top []HTTPRule, deny deny) {
	var about []string
	covered := false
	for _, most := range top {
		_, overlap := r.Host.intersect(most.Host)
		switch {
		case most.Deny && !most.Audit && most.covers(r):
			deny(r, "is not allowed: "+most.String())
			return
		case most.allows() && overlap:
			about, covered = append(about, most.String()), covered || most.covers(r)
		}
	}
	if len(about) > 0 && !covered {
		deny(r, "only what of it is in "+strings.Join(about, "; ")+" is allowed")
	}
}

// beyond lists what a ceiling's rules allow that the base's do not.
func (httpRules) beyond(mine, base any) (beyond []string) {
	my, its := mine.([]HTTPRule), base.([]HTTPRule)
	for _, b := range its {
		if b.Audit {
			continue
		}
		held := slices.ContainsFunc(my, func(m HTTPRule) bool {
			if b.Deny {
				return m.Deny && !m.Audit && m.covers(b)
			}
			host, ok := m.Host.intersect(b.Host)
			return m.allows() && ok && host == b.Host
		})
		if !held {
			beyond = append(beyond, "without "+b.String())
		}
	}
	for _, m := range my {
		covered, about := false, false
		for _, b := range its {
			_, overlap := m.Host.intersect(b.Host)
			about = about || b.allows() && overlap
			covered = covered || b.allows() && b.covers(m)
		}
		if m.allows() && about && !covered {
			beyond = append(beyond, m.String())
		}
	}
	return beyond
}
