// Package egress translates a policy's grants into rules for the network and the broker. It decides and connects
// nothing.
package egress

import (
	"net"
	"net/url"
	"strconv"

	"golang.org/x/net/http/httpproxy"

	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
)

// Network returns a run's network configuration from its grants.
func Network(upstream netstack.Upstream, eff policy.Effective) (netstack.Config, []uint16) {
	cfg := netstack.Config{Upstream: upstream, Limits: netstack.Limits{
		Connections: eff.MaxConnections, BytesUp: eff.MaxUpload, BytesDown: eff.MaxDownload,
	}}
	var relayed []uint16 // ports of the host's loopback, which the guest reaches on its own loopback
	for _, r := range eff.AllowTCP {
		cfg.Rules = append(cfg.Rules, netstack.Rule{Text: "tcp " + r.String(), Host: r.Host, Addr: r.Addr, Port: r.Port,
			Raw: true})
		if r.Loopback() {
			relayed = append(relayed, r.Port)
		}
	}
	for _, r := range eff.AllowNet {
		cfg.Rules = append(cfg.Rules, netstack.Rule{Text: "net " + r.String(), Host: r.Host, Wildcard: r.Wildcard,
			Addr: r.Addr, Port: r.Port})
	}
	for _, r := range eff.Ask {
		cfg.Rules = append(cfg.Rules, netstack.Rule{Text: "ask " + r.String(), Host: r.Host, Wildcard: r.Wildcard,
			Addr: r.Addr, Port: r.Port, Ask: true})
	}
	if eff.AllowNetAny {
		cfg.Rules = append(cfg.Rules, netstack.Rule{Text: "net any", Any: true})
	}
	return cfg, relayed
}

// EnvironmentProxy returns the proxy that the host's environment names. The guest never
// sees it.
func EnvironmentProxy() func(host string, port uint16) *url.URL {
	choose := httpproxy.FromEnvironment().ProxyFunc()
	return func(host string, port uint16) *url.URL {
		scheme := "https"
		if port == 80 {
			scheme = "http"
		}
		u, err := choose(&url.URL{Scheme: scheme, Host: net.JoinHostPort(host, strconv.Itoa(int(port)))})
		if err != nil {
			return nil
		}
		return u
	}
}
