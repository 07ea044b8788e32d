package e2b

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
)

// One caller tries to reach another's sandbox.
func TestAttackTenants(t *testing.T) {
	a := newAPI(t, true, "alice", "mallory")
	key := func(name string) headers { return headers{keyHeader, name + "-token-0123456789"} }
	alice := a.create(key("alice"), nil)
	if _, err := alice.run("echo secret > hers"); err != nil {
		t.Fatal(err)
	}
	a.want(201, "POST", "/sandboxes/"+alice.id+"/snapshots", object{"name": "hers"}, alice.key...)
	own := a.create(key("mallory"), nil)

	q := url.Values{"path": {"hers"}, "username": {""}}
	q.Set("signature", a.e2b.find(own.id).signature("GET", q)) // of her own token
	other := url.Values{"path": {"hers"}, "username": {"root"}}
	other.Set("signature", a.e2b.find(alice.id).signature("GET", q)) // for another user
	expired := url.Values{"path": {"hers"}, "username": {""}, "signature_expiration": {"1"}}
	expired.Set("signature", a.e2b.find(alice.id).signature("GET", expired))
	daemon := func(token string) headers {
		return headers{idHeader, alice.id, portHeader, "49983", tokenHeader, token}
	}
	for _, c := range []struct {
		name, method, path string
		with               headers
		want               string
	}{
		{"her details", "GET", "/sandboxes/" + alice.id, own.key, "404"},
		{"her end", "DELETE", "/sandboxes/" + alice.id, own.key, "404"},
		{"a fork of hers", "POST", "/sandboxes/" + alice.id + "/fork", own.key, "404"},
		{"her logs", "GET", "/v2/sandboxes/" + alice.id + "/logs", own.key, "404"},
		{"her snapshot's end", "DELETE", "/templates/hers", own.key, "404"},
		{"her file, without a token", "GET", "/files?path=hers", daemon(""), "401"},
		{"her file, with another's token", "GET", "/files?path=hers", daemon(own.token), "401"},
		{"her file, with another's key", "GET", "/files?path=hers", append(daemon(""), own.key...), "401"},
		{"her file, with another's key as a token", "GET", "/files?path=hers", daemon(own.key[1]), "401"},
		{"her file, by her host and another's header", "GET", "/files?path=hers",
			headers{"Host", "49983-" + alice.id + ".boxes.test", idHeader, own.id, tokenHeader, own.token}, "401"},
		{"a URL signed with another's token, for her sandbox", "GET", "/files?" + q.Encode(),
			headers{idHeader, alice.id}, "401"},
		{"a URL signed for another user", "GET", "/files?" + other.Encode(), nil, "401"},
		{"a URL that has expired", "GET", "/files?" + expired.Encode(), nil, "401"},
		{"a signature for a process", "GET", "/process.Process/List?" + q.Encode(), headers{idHeader, alice.id}, "401"},
		{"her port, without a token", "GET", "/", headers{idHeader, alice.id, portHeader, "80"}, "403"},
		{"her code interpreter, without a token", "GET", "/contexts",
			headers{idHeader, alice.id, portHeader, "49999"}, "403"},
		{"MCP through her host", "GET", "/mcp", headers{"Host", "3000-" + alice.id + ".boxes.test"}, "403"},
		{"the server's metrics through her sandbox", "GET", "/metrics", daemon(""), "401"},
	} {
		status, text := a.send(c.method, c.path, nil, c.with)
		attack.Check(t, "another caller's sandbox: "+c.name, c.want, fmt.Sprint(status))
		if strings.Contains(string(text), "secret\n") {
			t.Errorf("%s: %s", c.name, text)
		}
	}
	status, text := a.send("POST", "/v2/sandboxes", object{"templateID": "hers"}, own.key)
	attack.Check(t, "another caller's sandbox: a sandbox of her snapshot", "not made", map[bool]string{
		true: "not made", false: "made"}[status != 201])
	_, list := a.send("GET", "/v2/sandboxes", nil, own.key)
	if strings.Contains(string(list), alice.id) || !strings.Contains(string(list), own.id) {
		t.Errorf("%s %s", text, list)
	}
	if status, text := a.send("GET", "/files?path=hers", nil, daemon(alice.token)); status != 200 {
		t.Errorf("with her token: %d %s", status, text)
	}
}

// Requests that ask for more than the ceiling, or more than there is, get nothing.
func TestAttackCreate(t *testing.T) {
	a := newAPI(t, false)
	for _, c := range []struct {
		name string
		body object
		want string
	}{
		{"an image of a container", object{"templateID": "alpine:3.20"}, "400"},
		{"an image by a path", object{"templateID": "../../etc/passwd"}, "400"},
		{"no template", object{}, "400"},
		{"a time beyond a number", object{"templateID": "python", "timeout": 10_000_000_000}, "400"},
		{"a negative time", object{"templateID": "python", "timeout": -1}, "400"},
		{"all but IPv6", object{"templateID": "python", "network": object{"denyOut": []string{"::/0"}}}, "400"},
		{"all but an address", object{"templateID": "python", "network": object{"denyOut": []string{"8.8.8.8"}}}, "400"},
		{"a proxy", object{"templateID": "python", "network": object{"egressProxy": object{"url": "x"}}}, "400"},
		{"a variable that sets another", object{"templateID": "python", "envVars": object{"A=B": "c"}}, "400"},
		{"a volume", object{"templateID": "python", "volumeMounts": []object{{"name": "v", "path": "/"}}}, "400"},
	} {
		status, text := a.send("POST", "/v2/sandboxes", c.body, nil)
		attack.Check(t, "a sandbox with "+c.name, c.want, fmt.Sprint(status))
		if status != 400 {
			t.Errorf("%s: %s", c.name, text)
		}
	}
	a.e2b.opts.Admit = func(unitask.Caller) error { return &unitask.BusyError{What: "too often", After: time.Minute} }
	status, text := a.send("POST", "/v2/sandboxes", object{"templateID": "python"}, nil)
	attack.Check(t, "a sandbox beyond the caller's rate", "429", fmt.Sprint(status))
	if !strings.Contains(string(text), "too often") {
		t.Errorf("%s", text)
	}
	attack.Check(t, "sandboxes that are there afterwards", "0", fmt.Sprint(len(a.e2b.of(""))+len(a.e2b.all)))
}

// A page of a sandbox, or of another origin, reaches nothing of the server.
func TestAttackSandboxHosts(t *testing.T) {
	a := newAPI(t, false)
	for name, with := range map[string]headers{
		"a host of no sandbox":            {"Host", "3000-unknown.boxes.test"},
		"a foreign origin":                {"Host", "3000-unknown.boxes.test", "Origin", "https://evil.example"},
		"MCP with a sandbox's header":     {idHeader, "unknown"},
		"two sandboxes":                   {"Host", "3000-one.boxes.test", idHeader, "two"},
		"a name that ends like the hosts": {"Host", "evil-boxes.test"},
	} {
		status, text := a.send("GET", "/mcp", nil, with)
		attack.Check(t, "the server's MCP through "+name, "refused", map[bool]string{true: "refused",
			false: string(text)}[status == 401 || status == 403 || status == 502])
	}
}
