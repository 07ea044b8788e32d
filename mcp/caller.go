package mcp

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/record"
)

// maxCallerName bounds a caller's name, in bytes: the name is in every record of the caller, in logs and in
// tables. Issuers' URLs and subjects are some tens of bytes long.
const maxCallerName = 512

// checkName returns what is wrong with a caller's name. A name is written to records, logs and policy files, so
// it must be unambiguous text there.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty")
	case len(name) > maxCallerName:
		return fmt.Errorf("has more than %d bytes", maxCallerName)
	case !utf8.ValidString(name):
		return fmt.Errorf("is not UTF-8 text")
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) && r != ' ' }):
		return fmt.Errorf("has a control or formatting character")
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("begins or ends with a space")
	}
	return nil
}

// issuedName returns the name of a caller with a JWT: its issuer, "#" and its subject. An issuer has no "#" (RFC
// 8414, section 2), so no two callers share a name, whatever their subjects are.
func issuedName(issuer, subject string) (string, error) {
	if err := checkName(issuer); err != nil {
		return "", fmt.Errorf("its iss %w", err)
	}
	if strings.Contains(issuer, "#") {
		return "", fmt.Errorf("its iss has a fragment")
	}
	if err := checkName(subject); err != nil {
		return "", fmt.Errorf("its sub %w", err)
	}
	name := issuer + "#" + subject
	if err := checkName(name); err != nil {
		return "", fmt.Errorf("its iss and sub together: %w", err)
	}
	return name, nil
}

// shortName is a key of a TokenInfo's Extra: another name of the caller, for its table in the policy file.
const shortName = "unitask.shortName"

// caller identifies the sender of a request: over HTTP by token or connection; over stdin and stdout it is the
// user of this process.
func (s *Server) caller(extra *sdk.RequestExtra) unitask.Caller {
	names := callerNames(extra)
	c := unitask.Caller{Name: names[0], Via: unitask.ViaMCP, Ceiling: s.opts.Ceiling.For(names...)}
	if c.HostDir = s.opts.Dir; tokenOf(extra) != nil {
		c.Via, c.HostDir = unitask.ViaHTTP, ""
	}
	return c
}

// callerNames returns the names of a request's sender, which may have tables: the first is the caller's own.
func callerNames(extra *sdk.RequestExtra) []string {
	return namesOf(tokenOf(extra))
}

// namesOf returns the names of the caller with a token, nil for the user of this process.
func namesOf(token *auth.TokenInfo) []string {
	if token == nil {
		return []string{unitask.LocalOwner(os.Geteuid())}
	}
	if short, ok := token.Extra[shortName].(string); ok {
		return []string{token.UserID, short}
	}
	return []string{token.UserID}
}

// nobody is the name of a caller that nothing identifies.
const nobody = "nobody"

// tokenOf returns what is known about an HTTP request's caller; nil for a request that did not arrive over HTTP.
// An HTTP request that passed no check of its caller, which Handler prevents, belongs to nobody.
func tokenOf(extra *sdk.RequestExtra) *auth.TokenInfo {
	switch {
	case extra == nil || extra.TokenInfo == nil && extra.Header == nil:
		return nil
	case extra.TokenInfo == nil:
		return &auth.TokenInfo{UserID: nobody}
	}
	return extra.TokenInfo
}

// sees selects the runs that a caller may see: those that the same caller made through MCP.
func sees(caller unitask.Caller) func(owner string, via record.Via) bool {
	return func(owner string, via record.Via) bool {
		return slices.Contains(throughMCP, via) && owner == caller.Name
	}
}

// throughMCP lists the ways of requesting runs through MCP.
var throughMCP = []record.Via{unitask.ViaMCP, unitask.ViaHTTP}
