package e2b

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// networkConfig is a sandbox's network as a request has it.
type networkConfig struct {
	AllowPublic *bool          `json:"allowPublicTraffic,omitempty"`
	AllowOut    []string       `json:"allowOut,omitempty"`
	DenyOut     []string       `json:"denyOut,omitempty"`
	Proxy       map[string]any `json:"egressProxy,omitempty"`
	MaskHost    string         `json:"maskRequestHost,omitempty"`
	Rules       map[string]any `json:"rules,omitempty"`
}

// everything is the network of all addresses, in denyOut.
const everything = "0.0.0.0/0"

// maxHosts bounds a list of hosts.
const maxHosts = 1000

// check returns what unitask can't do. It refuses instead of granting more than was asked for.
func (c *networkConfig) check() error {
	switch {
	case len(c.Proxy) > 0:
		return policy.Bad("network.egressProxy", "given", "unitask has no proxy for a sandbox")
	case len(c.Rules) > 0:
		return policy.Bad("network.rules", "given", "unitask changes no requests here: bind a secret to the host")
	case c.MaskHost != "":
		return policy.Bad("network.maskRequestHost", c.MaskHost, "a sandbox's ports get their own host")
	case len(c.AllowOut) > maxHosts:
		return policy.Bad("network.allowOut", "too long", "has at most %d entries", maxHosts)
	}
	for _, to := range c.DenyOut {
		if to != everything && (to != "::/0" || !slices.Contains(c.DenyOut, everything)) {
			return policy.Bad("network.denyOut", to, "unitask denies by default: deny %s, and list what is allowed in allowOut",
				everything)
		}
	}
	for _, to := range c.AllowOut {
		if prefix, err := netip.ParsePrefix(to); err == nil && !prefix.IsSingleIP() && to != everything {
			return policy.Bad("network.allowOut", to, "name hosts or addresses: unitask allows no ranges")
		}
	}
	return nil
}

// grant asks for a sandbox's network: everything, unless the request wants less. The caller's ceiling may cut it.
func (c *networkConfig) grant(req *unitask.Request, internet *bool) {
	closed := internet != nil && !*internet || slices.Contains(c.DenyOut, everything)
	if !closed {
		req.AllowNetAny = true
		return
	}
	for _, to := range c.AllowOut {
		if to == everything {
			req.AllowNetAny = true
			continue
		}
		if prefix, err := netip.ParsePrefix(to); err == nil {
			to = prefix.Addr().String()
		}
		req.AllowNet = append(req.AllowNet, strings.ToLower(to))
	}
}

// reach returns what a sandbox's network reaches: every host, or hosts in order.
func (c *networkConfig) reach(internet *bool) (every bool, hosts []string) {
	var req unitask.Request
	c.grant(&req, internet)
	slices.Sort(req.AllowNet)
	return req.AllowNetAny, slices.Compact(req.AllowNet)
}

// setNetwork refuses to change a sandbox's network: its policy is part of its record.
func (s *Server) setNetwork(w http.ResponseWriter, r *http.Request, _ *sandbox) {
	s.fail(w, r, policy.Bad("network", "changed", "a sandbox keeps the network that it began with: make another one"))
}
