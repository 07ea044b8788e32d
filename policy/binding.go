package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Binding is one host of a secret, and the places in requests to it for the value: HOST, or HOST:PLACE[+PLACE…].
// Without places, the headers are meant.
type Binding struct {
	Host NetRule // a name or *.DOMAIN
	// In lists the places, from Places and in that order; it is never empty.
	In []string
	// Headers are the fields, in lower case and sorted, if header is among the places; an empty list means every
	// field.
	Headers []string
	// Pass permits a placeholder in other places. Without Pass the request is refused.
	Pass bool
}

// Places are the places in a request that can hold a secret. sigv4 is not a place: unitask signs an AWS request
// again with the value, if it is signed with the placeholder.
var Places = []string{placeHeader, "query", "path", "body", "sigv4"}

const (
	placeHeader = "header"
	oneHeader   = placeHeader + "." // and the name of a field
	placePass   = "pass"
	// maxHeaders bounds the header fields of one host.
	maxHeaders = 16
)

func parseBinding(text string) (Binding, error) {
	b := Binding{}
	text, err := withoutHTTPS(text)
	if err != nil {
		return b, err
	}
	host, list, placed := strings.Cut(text, ":")
	if placed && strings.Trim(list, "0123456789") == "" {
		return b, errors.New("is no host name: use NAME@HOST, without a port")
	}
	if b.Host, err = ParseNetRule(host); err != nil {
		return b, err
	}
	if b.Host.Addr.IsValid() {
		return b, errors.New("is no host name: use NAME@HOST, without a port")
	}
	if !placed {
		b.In = []string{placeHeader}
		return b, nil
	}
	in, fields, every := map[string]bool{}, map[string]bool{}, false
	for place := range strings.SplitSeq(list, "+") {
		field, one := strings.CutPrefix(place, oneHeader)
		switch {
		case place == placePass:
			b.Pass = true
		case one && fieldName(field):
			in[placeHeader], fields[strings.ToLower(field)] = true, true
		case slices.Contains(Places, place):
			in[place], every = true, every || place == placeHeader
		default:
			return Binding{}, fmt.Errorf("has a place %.40q: use %s, header.NAME or pass, with a + between", place,
				strings.Join(Places, ", "))
		}
	}
	if len(in) == 0 {
		in[placeHeader], every = true, true
	}
	if len(fields) > maxHeaders {
		return Binding{}, fmt.Errorf("has %d header fields: %d is the most", len(fields), maxHeaders)
	}
	b.In = placesOf(in)
	if !every {
		b.Headers = slices.Sorted(maps.Keys(fields))
	}
	return b, nil
}

// withoutHTTPS returns the text without the scheme, the port and the last slash of an https URL, and other texts as
// they are. An http URL is an error: the value is sent over TLS only.
func withoutHTTPS(text string) (string, error) {
	rest, port, err := withoutScheme(text)
	switch {
	case err != nil || port == "":
		return rest, err
	case port != webPorts["https"]:
		return "", errors.New(`has the scheme "http": unitask sends a secret over TLS only, so give only the host`)
	}
	return strings.TrimSuffix(strings.TrimSuffix(rest, "/"), ":"+port), nil
}

// placesOf returns the places of a set in their order.
func placesOf(in map[string]bool) []string {
	return slices.DeleteFunc(slices.Clone(Places), func(p string) bool { return !in[p] })
}

// fieldName reports whether s can be the name of a header field: the part of RFC 9110 that is in use.
func fieldName(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// String returns the form that parseBinding reads.
func (b Binding) String() string {
	places := slices.Clone(b.In)
	if at := slices.Index(places, placeHeader); at >= 0 && len(b.Headers) > 0 {
		var fields []string
		for _, f := range b.Headers {
			fields = append(fields, oneHeader+f)
		}
		places = slices.Replace(places, at, at+1, fields...)
	}
	if b.Pass {
		places = append(places, placePass)
	}
	if text := strings.Join(places, "+"); text != placeHeader {
		return b.Host.String() + ":" + text
	}
	return b.Host.String()
}

// intersect returns what two bindings both allow.
func (b Binding) intersect(o Binding) (both Binding, ok bool) {
	if both.Host, ok = b.Host.intersect(o.Host); !ok {
		return Binding{}, false
	}
	in := map[string]bool{}
	for _, p := range b.In {
		in[p] = slices.Contains(o.In, p)
	}
	switch {
	case len(b.Headers) == 0:
		both.Headers = o.Headers
	case len(o.Headers) == 0:
		both.Headers = b.Headers
	default:
		for _, f := range b.Headers {
			if slices.Contains(o.Headers, f) {
				both.Headers = append(both.Headers, f)
			}
		}
		in[placeHeader] = in[placeHeader] && len(both.Headers) > 0
	}
	if !in[placeHeader] {
		both.Headers = nil
	}
	both.In, both.Pass = placesOf(in), b.Pass && o.Pass
	return both, len(both.In) > 0
}

// with returns what either of two bindings of one host allows.
func (b Binding) with(o Binding) Binding {
	in := map[string]bool{}
	every := false
	fields := map[string]bool{}
	for _, one := range []Binding{b, o} {
		for _, p := range one.In {
			in[p] = true
			every = every || p == placeHeader && len(one.Headers) == 0
		}
		for _, f := range one.Headers {
			fields[f] = true
		}
	}
	b.In, b.Headers, b.Pass = placesOf(in), nil, b.Pass && o.Pass
	if !every {
		b.Headers = slices.Sorted(maps.Keys(fields))
	}
	return b
}

// joinBindings lists each host once, sorted. If bindings differ in whether placeholders pass, none pass: there is
// one placeholder for all hosts of a secret.
func joinBindings(list []Binding) string {
	byHost := map[string]Binding{}
	pass := true
	for _, b := range list {
		pass = pass && b.Pass
		host := b.Host.String()
		if other, twice := byHost[host]; twice {
			b = other.with(b)
		}
		byHost[host] = b
	}
	var texts []string
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		b := byHost[host]
		b.Pass = pass
		texts = append(texts, b.String())
	}
	return strings.Join(texts, ",")
}

// secretTable reads a secret from TOML's [secrets.NAME].
func secretTable(table map[string]any) (texts []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(table)) {
		text, err := oneSecret(name, table[name])
		if err != nil {
			return nil, fmt.Errorf("%.100q: %w", name, err)
		}
		texts = append(texts, text)
	}
	return texts, nil
}

func oneSecret(name string, value any) (string, error) {
	table, ok := value.(map[string]any)
	if !ok {
		return "", fmt.Errorf("is a %s: use [secrets.NAME] with hosts, or secrets = [\"NAME@HOST\"]", tomlType(value))
	}
	lists := map[string][]string{"hosts": nil, "in": nil, placeHeader: nil}
	pass := ""
	for _, key := range slices.Sorted(maps.Keys(table)) {
		var err error
		switch _, list := lists[key]; {
		case list:
			lists[key], err = stringList(table[key])
		case key != "onMisdirect":
			err = errors.New("is unknown: use hosts, in, header and onMisdirect")
		case table[key] == "pass":
			pass = "+" + placePass
		case table[key] != "deny":
			err = errors.New(`must be "deny" or "pass"`)
		}
		if err != nil {
			return "", fmt.Errorf("%s %w", key, err)
		}
	}
	_, said := table["in"]
	_, fields := table[placeHeader]
	places := lists["in"]
	switch header := slices.Index(places, placeHeader); {
	case len(lists["hosts"]) == 0:
		return "", errors.New("has no hosts: secrets = [\"NAME\"] is for one that the code itself may get")
	case said && len(places) == 0 || fields && len(lists[placeHeader]) == 0:
		return "", errors.New("has an empty list: leave in or header out, or name places and fields")
	case fields && said && header < 0:
		return "", errors.New("has header, and no \"header\" in its in")
	case fields:
		if header >= 0 {
			places = slices.Delete(slices.Clone(places), header, header+1)
		}
		for _, f := range lists[placeHeader] {
			places = append(places, oneHeader+f)
		}
	case !said:
		places = []string{placeHeader}
	}
	for i, text := range lists["hosts"] {
		host, err := withoutHTTPS(text)
		if err != nil {
			return "", fmt.Errorf("has a host %s that %w", quoted(withoutLogin(text)), err)
		}
		if strings.ContainsAny(host, ",:+") {
			return "", fmt.Errorf("has a host %s: use names or *.DOMAIN; places are in", quoted(host))
		}
		lists["hosts"][i] = host + ":" + strings.Join(places, "+") + pass
	}
	for _, p := range places {
		if strings.ContainsAny(p, ",:+") || p == placePass {
			return "", fmt.Errorf("has a place or field %.40q", p)
		}
	}
	return name + "@" + strings.Join(lists["hosts"], ","), nil
}
