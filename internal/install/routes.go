package install

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/internal/publicaddr"
	"github.com/unitask/unitask/internal/userdir"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// This file finds a build's routes to registries: those that the host's own pip and npm are configured for.

// hostRegistry returns the registry in the configuration of the host's own tool. Without a configured registry, it
// calls tool for the tool's default.
func hostRegistry(i *language.Installer, tool func() (string, error)) (*packages.Registry, error) {
	home, _ := userdir.Home()
	if !filepath.IsAbs(home) { // a relative one leads into the working folder, which may be a project's
		home = ""
	}
	if i.System == policy.Pip {
		return packages.PipRegistry(os.LookupEnv, home, tool)
	}
	return packages.NpmRegistry(os.LookupEnv, home, func() (string, error) {
		file, err := tool()
		if err != nil {
			return "", err
		}
		return packages.NpmDefault(file)
	})
}

// Routes say how a build's machine reaches hosts.
type Routes struct {
	Nets, TCPs []string // as Request.AllowNet and AllowTCP
	Plain      []string // hosts that speak HTTP without TLS
	Proxy      func(host string, port uint16) *url.URL
}

// Registry finds the registry that the host's own pip or npm is configured for, and the routes to it.
func (in *Installer) Registry(ctx context.Context, i *language.Installer, arch image.Arch) (
	*packages.Registry, Routes, error) {
	registry, err := hostRegistry(i, func() (string, error) {
		tool, _, err := in.Images.Parts().Tool(ctx, arch, i.Tool)
		return tool, err
	})
	if err != nil {
		return nil, Routes{}, err
	}
	routes, err := in.reach(ctx, registry)
	return registry, routes, err
}

// reach finds the routes to a registry, and checks that the registry answers.
func (in *Installer) reach(ctx context.Context, registry *packages.Registry) (r Routes, err error) {
	hosts, err := registry.All()
	if err != nil {
		return r, err
	}
	if r.Proxy, err = registryProxy(registry.Proxy, in.Proxy); err != nil {
		return r, err
	}
	if err := probe(ctx, registry, hosts[0], r.Proxy); err != nil {
		return r, err
	}
	for _, h := range hosts {
		at := net.JoinHostPort(h.Name, h.Port)
		if isPublic(ctx, h, r.Proxy) {
			r.Nets = append(r.Nets, at)
		} else {
			r.TCPs = append(r.TCPs, at)
		}
		if h.Plain {
			r.Plain = append(r.Plain, h.Name)
		}
	}
	return r, nil
}

// DeniedHosts returns the hosts that a build was denied, "" if none.
func (in *Installer) DeniedHosts(id string) string {
	var denied []string
	text, _, _ := in.Records.Read(id, record.NetlogFile, MaxLockText)
	for line := range bytes.Lines(text) {
		var d netstack.Decision
		if json.Unmarshal(line, &d) != nil || d.Verdict != netstack.Denied {
			continue
		}
		if host := d.Host(); host != "" && !slices.Contains(denied, host) && len(denied) < 5 {
			denied = append(denied, host)
		}
	}
	if len(denied) == 0 {
		return ""
	}
	return "; it was refused the way to " + strings.Join(denied, ", ")
}

// registryProxy returns the proxy for a registry: its tool's own, else the host's.
func registryProxy(own string, usual func(string, uint16) *url.URL) (func(string, uint16) *url.URL, error) {
	if own == "" {
		return usual, nil
	}
	u, err := url.Parse(own)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("the proxy that is configured for packages, %q, is no address: http://HOST:PORT",
			packages.Shown(own))
	}
	return func(string, uint16) *url.URL { return u }, nil
}

// probe asks a registry for a first byte. It fails within seconds if there is no answer.
func probe(ctx context.Context, r *packages.Registry, h packages.Host, proxy func(string, uint16) *url.URL) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	transport.Proxy = func(*http.Request) (*url.URL, error) {
		port, _ := strconv.ParseUint(h.Port, 10, 16)
		if proxy == nil {
			return nil, nil
		}
		return proxy(h.Name, uint16(port)), nil
	}
	if r.CA != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(r.CA)) {
			return errors.New("the certificates that are configured for packages are not in PEM form")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, strings.TrimSuffix(r.URL, "/")+"/", nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("not within %.0f seconds", probeTime.Seconds())
		}
		return fmt.Errorf("the registry %s (%s) does not answer: %w", packages.Shown(r.URL), r.From, err)
	}
	return resp.Body.Close()
}

// isPublic reports whether a host is on the public Internet. A registry that is elsewhere is also allowed, because
// the host's own configuration names it.
func isPublic(ctx context.Context, h packages.Host, proxy func(string, uint16) *url.URL) bool {
	port, _ := strconv.ParseUint(h.Port, 10, 16)
	if proxy != nil && proxy(h.Name, uint16(port)) != nil {
		return true
	}
	if addr, err := netip.ParseAddr(h.Name); err == nil {
		return publicaddr.Public(addr)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h.Name)
	return err != nil || !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !publicaddr.Public(a) })
}
