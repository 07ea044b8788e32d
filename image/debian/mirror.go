package debian

import (
	"bufio"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Mirrors are the addresses of archives with the same files, the preferred one first.
type Mirrors struct {
	Main     []string // of the releases
	Security []string // of their security updates
}

// ErrNoMirror means that neither the user nor the host's apt names a mirror.
var ErrNoMirror = errors.New("no mirror of Debian is known")

// Named returns the mirrors that an address stands for: http://HOST/debian, with security updates at
// http://HOST/debian-security. It fails if the text is not an address.
func Named(address string) (Mirrors, error) {
	if !isAddress(address) {
		return Mirrors{}, errors.New("it is no address of a mirror: use http://HOST/debian or https://HOST/debian")
	}
	var m Mirrors
	m.add(address)
	return m, nil
}

// isAddress reports whether a text is the address of an archive, which a line of apt's sources can have, too.
func isAddress(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Hostname() != "" && (u.Scheme == "http" || u.Scheme == "https") && u.RawQuery == "" &&
		!u.ForceQuery && u.Fragment == "" && !strings.ContainsAny(text, " \"#")
}

// add appends a mirror, and the place where mirrors keep security updates.
func (m *Mirrors) add(address string) {
	address = strings.TrimRight(address, "/")
	if !slices.Contains(m.Main, address) {
		m.Main = append(m.Main, address)
	}
	if security := address + "-security"; strings.HasSuffix(address, "/debian") && !slices.Contains(m.Security, security) {
		m.Security = append(m.Security, security)
	}
}

// suites are Debian's own names of releases in apt's sources.
var suites = []string{"stable", "oldstable", "testing", "unstable", "sid", "bullseye", "bookworm", "trixie", "forky",
	"duke"}

// OfHost returns the mirrors that this host's apt uses for Debian, of any release (sources.list(5)). Other vendors'
// archives are left out if their entries show that; otherwise the signature of their index shows it.
func OfHost() Mirrors { return ofFolder("/etc/apt") }

func ofFolder(etc string) (m Mirrors) {
	var security []string
	take := func(addresses, names, components []string) {
		if !slices.Contains(components, "main") {
			return
		}
		for _, suite := range names {
			release, kind, _ := strings.Cut(strings.Trim(suite, "/"), "-")
			if kind == "" {
				release, kind, _ = strings.Cut(release, "/") // bullseye and older: buster/updates
			}
			if !slices.Contains(suites, release) {
				continue
			}
			for _, address := range listed(addresses) {
				if kind == "security" {
					security = append(security, strings.TrimRight(address, "/"))
				} else if kind == "" || kind == "updates" {
					m.add(address)
				}
			}
		}
	}
	files, _ := filepath.Glob(filepath.Join(etc, "sources.list.d", "*"))
	for _, name := range append([]string{filepath.Join(etc, "sources.list")}, files...) {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		switch filepath.Ext(name) {
		case ".list":
			ofLines(string(text), take)
		case ".sources":
			ofStanzas(string(text), take)
		}
	}
	slices.SortStableFunc(m.Main, func(a, b string) int { return others(a) - others(b) })
	for _, address := range m.Security {
		if !slices.Contains(security, address) {
			security = append(security, address)
		}
	}
	m.Security = slices.Compact(security)
	return m
}

// others returns 1 for an address that does not end as mirrors of Debian do.
func others(address string) int {
	if strings.HasSuffix(address, "/debian") {
		return 0
	}
	return 1
}

// ofLines reads the form with a line for each source: deb [OPTIONS] ADDRESS SUITE COMPONENT...
func ofLines(text string, take func(addresses, suites, components []string)) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '\t' {
			continue
		}
		if rest = strings.TrimSpace(rest); strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "]")
		}
		if words := strings.Fields(rest); len(words) > 2 {
			take(words[:1], words[1:2], words[2:])
		}
	}
}

// ofStanzas reads the form with paragraphs of fields (deb822(5)).
func ofStanzas(text string, take func(addresses, suites, components []string)) {
	fields, last := map[string][]string{}, ""
	end := func() {
		if slices.Contains(fields["types"], "deb") && !slices.Contains(fields["enabled"], "no") {
			take(fields["uris"], fields["suites"], fields["components"])
		}
		fields, last = map[string][]string{}, ""
	}
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			end()
		case line[0] == ' ' || line[0] == '\t':
			fields[last] = append(fields[last], strings.Fields(line)...)
		default:
			name, value, _ := strings.Cut(line, ":")
			last = strings.ToLower(name)
			fields[last] = strings.Fields(value)
		}
	}
	end()
}

// maxMirrorList bounds the mirrors of a list (apt-transport-mirror(1)).
const maxMirrorList = 10

// listed returns the addresses that HTTP can read. It replaces the host's lists of mirrors by the addresses in them.
func listed(addresses []string) (all []string) {
	for _, address := range addresses {
		name, isList := strings.CutPrefix(address, "mirror+file:")
		switch {
		case isAddress(address):
			all = append(all, address)
		case isList:
			f, err := os.Open(name)
			if err != nil {
				continue
			}
			lines := bufio.NewScanner(f)
			for lines.Scan() && len(all) < maxMirrorList {
				if words := strings.Fields(lines.Text()); len(words) > 0 && isAddress(words[0]) {
					all = append(all, words[0])
				}
			}
			f.Close()
		}
	}
	return all
}

// String names the mirrors, for messages.
func (m Mirrors) String() string {
	if len(m.Main) == 0 {
		return ErrNoMirror.Error()
	}
	return fmt.Sprintf("mirror %s", shown(m.Main[0]))
}
