package imagebuild

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// This file gives a build's steps their network. It has the hosts that the description names, the registries of the
// host's own pip or npm, and nothing else.

// stepNetwork is a description's network.
type stepNetwork struct {
	hosts   []string // as Request.AllowNet
	systems []string // pip, npm: whose registries
}

// parseNetwork parses a description's network.
func parseNetwork(list []string) (n stepNetwork, err error) {
	for _, text := range list {
		if text == policy.Pip || text == policy.Npm {
			if !slices.Contains(n.systems, text) {
				n.systems = append(n.systems, text)
			}
			continue
		}
		if _, err := policy.ParseNetRule(text); err != nil {
			return n, fmt.Errorf("network: %.100q %w: "+
				"use HOST, HOST:PORT, or pip or npm for the registries that these use on this machine", text, err)
		}
		n.hosts = append(n.hosts, text)
	}
	return n, nil
}

// String describes the steps' network for people.
func (n stepNetwork) String() string {
	list := slices.Clone(n.hosts)
	for _, system := range n.systems {
		list = append(list, "the registries of "+system)
	}
	if len(list) == 0 {
		return ""
	}
	return " that reaches " + strings.Join(list, ", ")
}

// allowed checks the network, and the packages to install, against a ceiling. A build with less than its description
// asks for would fail in some other way.
func (n stepNetwork) allowed(c *policy.Ceiling, system string, specs []string) error {
	req := policy.Request{AllowNet: n.hosts}
	for _, any := range n.systems {
		req.Packages = append(req.Packages, any+":*")
	}
	for _, spec := range specs {
		req.Packages = append(req.Packages, system+":"+spec)
	}
	_, denials, err := policy.Resolve(req, c)
	for _, d := range denials {
		if d.Field == "allowNet" || d.Field == "packages" {
			return fmt.Errorf("what a build reaches is held by %s: %s", d.Rule, d)
		}
	}
	return err
}

// configure gives the steps' machine its network, and its pip and npm the host's configuration.
func (n stepNetwork) configure(ctx context.Context, in *install.Installer, req *run.Request) (
	proxy func(string, uint16) *url.URL, err error) {
	req.AllowNet, req.Env = n.hosts, map[string]string{}
	proxies := map[string]func(string, uint16) *url.URL{} // by HOST:PORT
	for _, system := range n.systems {
		l := language.OfSystem(system)
		registry, routes, err := in.Registry(ctx, l.Packages, req.Arch)
		if err != nil {
			return nil, err
		}
		req.AllowNet, req.AllowTCP = append(req.AllowNet, routes.Nets...), append(req.AllowTCP, routes.TCPs...)
		for _, at := range slices.Concat(routes.Nets, routes.TCPs) {
			proxies[at] = routes.Proxy
		}
		cert := ""
		if registry.CA != "" {
			ca := run.InlineFile{Name: system + "-ca.pem", Content: registry.CA}
			req.InlineFiles = append(req.InlineFiles, ca)
			cert = path.Join(req.Dir, ca.Name)
		}
		if system == policy.Pip {
			pipVariables(req.Env, registry, routes, cert)
		} else {
			req.InlineFiles = append(req.InlineFiles, run.InlineFile{Name: "npmrc", Content: npmConfig(registry, cert)})
			req.Env["npm_config_userconfig"] = path.Join(req.Dir, "npmrc")
		}
	}
	return func(host string, port uint16) *url.URL {
		if p := proxies[net.JoinHostPort(host, strconv.Itoa(int(port)))]; p != nil {
			return p(host, port)
		}
		if in.Proxy == nil {
			return nil
		}
		return in.Proxy(host, port)
	}, nil
}

// pipVariables configure pip for a registry; cert is the file of its certificates, "" if there is none.
func pipVariables(env map[string]string, r *packages.Registry, w install.Routes, cert string) {
	env["PIP_INDEX_URL"] = r.URL
	if len(r.More) > 0 {
		env["PIP_EXTRA_INDEX_URL"] = strings.Join(r.More, " ")
	}
	if len(w.Plain) > 0 {
		env["PIP_TRUSTED_HOST"] = strings.Join(w.Plain, " ")
	}
	if cert != "" {
		env["PIP_CERT"] = cert
	}
	for _, name := range []string{"PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_CACHE_DIR", "PIP_NO_INPUT", "PIP_RETRIES"} {
		env[name] = "1"
	}
	env["PIP_TIMEOUT"], env["PIP_ROOT_USER_ACTION"] = "15", "ignore"
}

// npmConfig returns npm's configuration for a registry.
func npmConfig(r *packages.Registry, cert string) string {
	lines := []string{"registry=" + r.URL, "cache=/tmp/npm-cache", "fetch-retries=1", "fetch-timeout=15000",
		"audit=false", "fund=false", "update-notifier=false"}
	for scope, u := range r.Scopes {
		lines = append(lines, scope+":registry="+u)
	}
	if cert != "" {
		lines = append(lines, "cafile="+cert)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}
