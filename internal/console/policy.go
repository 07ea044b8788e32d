package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/learn"
	"github.com/unitask/unitask/policy"
)

// ceilingLine is a key of a ceiling's file.
type ceilingLine struct{ File, Key, Value string }

func (c *Console) policy(w http.ResponseWriter, r *http.Request) {
	held, err := c.Policy()
	if err != nil { // then no run starts either
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	usual, _, err := unitask.Resolve(unitask.Request{}, nil)
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	var lines []ceilingLine
	for _, name := range held.Files {
		file, err := policy.ReadCeiling(name)
		if err != nil {
			c.wrong(w, r, http.StatusConflict, err)
			return
		}
		for _, row := range policy.Rows(usual, nil, file, nil) {
			if row.Ceiling != "" {
				lines = append(lines, ceilingLine{name, row.Key, row.Ceiling})
			}
		}
	}
	granted, _, err := unitask.Resolve(unitask.Request{}, held.Ceiling)
	if err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	gets, err := json.Marshal(granted)
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	data := map[string]any{"Files": held.Files, "Lines": lines, "Rows": policy.Rows(usual, nil, held.Ceiling, gets),
		"File": policy.CeilingFile}
	q := r.URL.Query()
	if url := strings.TrimSpace(q.Get("url")); url != "" {
		method := cmp.Or(q.Get("method"), http.MethodGet)
		data["Method"], data["URL"] = method, url
		data["Answer"], data["Denials"] = mayReach(held.Ceiling, method, url)
	}
	c.show(w, r, "policy.html", data)
}

// mayReach tells whether a run that asks for a request gets it, and what denies it.
func mayReach(ceiling *policy.Ceiling, method, address string) (answer string, denials []policy.Denial) {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.User != nil {
		return "HOST/PATH, or a URL of HTTP or HTTPS, is wanted.", nil
	}
	host, port := u.Hostname(), map[string]int{"https": 443, "http": 80}[u.Scheme]
	if u.Port() != "" {
		if port, err = strconv.Atoi(u.Port()); err != nil || port < 1 || port > 65535 {
			return "The port is no port.", nil
		}
	}
	if normal, err := policy.NormalHost(host); err == nil {
		host = normal
	}
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	asked := host
	if strings.Contains(host, ":") {
		asked = "[" + host + "]"
	}
	if u.Port() != "" {
		asked = fmt.Sprintf("%s:%d", asked, port)
	}
	granted, denials, err := policy.Resolve(policy.Request{AllowNet: []string{asked}}, ceiling)
	if err != nil {
		return err.Error(), nil
	}
	ok, why := learn.Allows(granted, method, host, uint16(port), path)
	switch {
	case !ok:
		return "No: " + why + ".", denials
	case strings.HasPrefix(why, "ask "):
		return "Only if you say so when the code connects: " + why + ".", nil
	}
	return fmt.Sprintf("Yes, to a run that asks for it (--allow-net %s).", asked), nil
}
