// Package packages keeps the packages of a home's runs, and knows their registries: those that the host's own pip and
// npm are configured for. It starts nothing, and treats a registry's answers as data: package install builds packages
// in a machine.
package packages

import (
	"archive/zip"
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/regular"
)

// Registry is a source of packages, and how to reach it.
type Registry struct {
	URL    string            // the index; for pip the "simple" one
	More   []string          // other indexes of pip
	Scopes map[string]string // for npm, the registry of each @SCOPE
	Hosts  []string          // further hosts with packages of the tool's default index
	Proxy  string            // "" means the environment's
	CA     string            // PEM; "" means the usual authorities
	From   string            // the source of URL
}

// Host is a host of a registry.
type Host struct {
	Name, Port string
	Plain      bool // HTTP without TLS
}

// All returns the hosts that a build may reach.
func (r *Registry) All() (list []Host, err error) {
	urls := append([]string{r.URL}, r.More...)
	for _, u := range r.Scopes {
		urls = append(urls, u)
	}
	for _, host := range r.Hosts {
		urls = append(urls, "https://"+host)
	}
	slices.Sort(urls[1:])
	for _, text := range urls {
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
			return nil, fmt.Errorf("%.200q, from %s, is no address of a registry: it must begin with https:// or http://",
				Shown(text), r.From)
		case u.User != nil:
			return nil,
				fmt.Errorf(
					"%.200q, from %s, has a user or password: code that packages bring would see it; give an index that needs none",
					Shown(text), r.From)
		}
		h := Host{Name: u.Hostname(), Port: u.Port(), Plain: u.Scheme == "http"}
		if h.Port == "" {
			h.Port = map[bool]string{true: "80", false: "443"}[h.Plain]
		}
		if !slices.Contains(list, h) {
			list = append(list, h)
		}
	}
	return list, nil
}

// Shown returns an address without its login and query.
func Shown(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "an address that can't be read"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

// Env looks up a variable; os.LookupEnv does.
type Env func(name string) (string, bool)

// maxConfig bounds a configuration file, and a file of certificates.
const maxConfig = 4 << 20

var errTooLarge = errors.New("has more than")

func readBounded(name string, most int64) (string, error) {
	f, _, err := regular.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return "", err
	}
	if int64(len(text)) > most {
		return "", fmt.Errorf("%s %w %d bytes", name, errTooLarge, most)
	}
	return string(text), nil
}

// PipRegistry returns the registry of the host's pip, from its files and PIP_*. Without any, tool provides pip's wheel,
// which has the default. Files of virtual environments are not read.
func PipRegistry(env Env, home string, tool func() (string, error)) (*Registry, error) {
	set, from := map[string]string{}, map[string]string{}
	for _, file := range pipFiles(env, home) {
		text, err := readBounded(file, maxConfig)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		section, key := "", ""
		for line := range strings.Lines(text) {
			trimmed := strings.TrimSpace(line)
			switch {
			case trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';':
			case line[0] == ' ' || line[0] == '\t': // continues
				if key != "" {
					set[key] += "\n" + trimmed
				}
			case trimmed[0] == '[':
				section, key = strings.Trim(trimmed, "[]"), ""
			default:
				name, value, ok := strings.Cut(trimmed, "=")
				if colon := strings.IndexByte(trimmed, ':'); !ok || colon >= 0 && colon < len(name) {
					name, value, ok = strings.Cut(trimmed, ":")
				}
				key = ""
				if name = optionName(name); ok && (section == "global" || section == "install") {
					key = name
					set[key], from[key] = strings.TrimSpace(value), file
				}
			}
		}
	}
	for _, name := range []string{"index-url", "extra-index-url", "proxy", "cert"} {
		variable := "PIP_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if value, ok := env(variable); ok && value != "" {
			set[name], from[name] = value, variable
		}
	}
	r := &Registry{URL: strings.TrimSpace(set["index-url"]), From: from["index-url"],
		More: strings.Fields(set["extra-index-url"]), Proxy: set["proxy"]}
	var err error
	if set["cert"] != "" {
		if r.CA, err = readBounded(expand(set["cert"], home), maxConfig); err != nil {
			return nil, fmt.Errorf("read the certificates that %s names for pip: %w", from["cert"], err)
		}
	}
	if r.URL == "" {
		r.From = "pip's own default"
		wheel, e := tool()
		if e != nil {
			return nil, e
		}
		r.URL, r.Hosts, err = pipDefault(wheel)
	}
	return r, err
}

func optionName(name string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimSpace(name), "_", "-"))
}

// pipFiles returns pip's files, those that take precedence last.
func pipFiles(env Env, home string) (files []string) {
	own, given := env("PIP_CONFIG_FILE")
	if own == os.DevNull {
		return nil
	}
	config := filepath.Join(home, ".config")
	if dir, ok := env("XDG_CONFIG_HOME"); ok && filepath.IsAbs(dir) {
		config = dir
	}
	if runtime.GOOS == "darwin" {
		files = append(files, "/Library/Application Support/pip/pip.conf")
	} else {
		dirs, ok := env("XDG_CONFIG_DIRS")
		if !ok || dirs == "" {
			dirs = "/etc/xdg"
		}
		for _, dir := range slices.Backward(filepath.SplitList(dirs)) {
			files = append(files, filepath.Join(dir, "pip", "pip.conf"))
		}
		files = append(files, "/etc/pip.conf")
	}
	if home != "" {
		files = append(files, filepath.Join(home, ".pip", "pip.conf"))
		if dir := filepath.Join(home, "Library", "Application Support", "pip"); runtime.GOOS == "darwin" {
			if st, err := os.Stat(dir); err == nil && st.IsDir() {
				config = filepath.Dir(dir)
			}
		}
		files = append(files, filepath.Join(config, "pip", "pip.conf"))
	}
	if given && own != "" {
		files = append(files, own)
	}
	return files
}

func expand(name, home string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		return filepath.Join(home, rest)
	}
	return name
}

var pipDefaults = regexp.MustCompile(`(?m)^PyPI = PackageIndex\(\s*"(https://[^"]+)", file_storage_domain="([^"]+)"`)

// pipDefault returns the index of a pip without configuration, from its own source.
func pipDefault(wheel string) (string, []string, error) {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return "", nil, fmt.Errorf("read %s: %w", wheel, err)
	}
	defer z.Close()
	f, err := z.Open("pip/_internal/models/index.py")
	if err != nil {
		return "", nil, fmt.Errorf("read %s: %w", wheel, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig))
	m := pipDefaults.FindSubmatch(text)
	if err != nil || m == nil {
		return "", nil,
			errors.Join(err,
				fmt.Errorf("%s does not say which index it uses: name one with index-url in pip.conf, or PIP_INDEX_URL", wheel))
	}
	return strings.TrimSuffix(string(m[1]), "/") + "/simple", []string{string(m[2])}, nil
}

// NpmRegistry returns the registry of the host's npm, from its files and npm_config_*, or fallback without any. A
// project's .npmrc is not read: it may have come with a repository.
func NpmRegistry(env Env, home string, fallback func() (string, error)) (*Registry, error) {
	set, from := map[string]string{}, map[string]string{}
	global, ok := env("npm_config_globalconfig")
	files := []string{global}
	if !ok {
		files = []string{"/usr/local/etc/npmrc", "/usr/etc/npmrc", "/etc/npmrc"}
	}
	user, ok := env("npm_config_userconfig")
	if !ok && home != "" {
		user = filepath.Join(home, ".npmrc")
	}
	for _, file := range append(files, user) {
		text, err := readBounded(file, maxConfig)
		if file == "" || errors.Is(err, os.ErrNotExist) || file == os.DevNull {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(strings.NewReader(text))
		lines.Buffer(nil, maxConfig+1)
		for lines.Scan() {
			name, value, ok := strings.Cut(lines.Text(), "=")
			name = strings.TrimSuffix(strings.TrimSpace(name), "[]")
			if !ok || name == "" || name[0] == '#' || name[0] == ';' {
				continue
			}
			value = strings.Trim(strings.TrimSpace(value), `"'`)
			if name == "ca" {
				value = strings.ReplaceAll(value, `\n`, "\n")
				if from[name] == file {
					value = set[name] + "\n" + value
				}
			}
			set[name], from[name] = variables.ReplaceAllStringFunc(value, func(s string) string {
				if v, ok := env(strings.TrimSuffix(strings.TrimSuffix(s[2:], "}"), "?")); ok {
					return v
				}
				return s
			}), file
		}
	}
	for _, name := range []string{"registry", "https-proxy", "proxy", "cafile", "ca"} {
		lower := "npm_config_" + strings.ReplaceAll(name, "-", "_")
		for _, variable := range []string{strings.ToUpper(lower), lower} {
			if value, ok := env(variable); ok && value != "" {
				set[name], from[name] = value, variable
			}
		}
	}
	r := &Registry{URL: set["registry"], From: from["registry"], Scopes: map[string]string{}, CA: set["ca"],
		Proxy: set["https-proxy"]}
	if r.Proxy == "" {
		r.Proxy = set["proxy"]
	}
	if r.Proxy == "null" || r.Proxy == "false" {
		r.Proxy = ""
	}
	if r.CA == "null" {
		r.CA = ""
	}
	for name, value := range set {
		if scope, ok := strings.CutSuffix(name, ":registry"); ok && strings.HasPrefix(scope, "@") {
			r.Scopes[scope] = value
		}
	}
	var err error
	if file := set["cafile"]; file != "" && file != "null" {
		if r.CA, err = readBounded(expand(file, home), maxConfig); err != nil {
			return nil, fmt.Errorf("read the certificates that %s names for npm: %w", from["cafile"], err)
		}
	}
	if r.URL == "" {
		r.From = "npm's own default"
		r.URL, err = fallback()
	}
	return r, err
}

var variables = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*\??\}`)
