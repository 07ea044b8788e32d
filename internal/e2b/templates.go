package e2b

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// A template is an image of which sandboxes are made.

// template is a template that E2B's users know by name.
type template struct {
	name, image string
	memoryMB    int  // 0 for the usual size
	interprets  bool // its sandboxes begin with a kernel
}

// known are the templates of E2B that unitask has. Every other name is that of an image.
var known = []template{
	{name: "base", image: "base"},
	{name: "code-interpreter-v1", image: "code-interpreter-v1", memoryMB: 1024, interprets: true},
}

// maxTemplate bounds a template's name, in bytes.
const maxTemplate = 256

// templateNamed returns a template by its name, with or without a tag.
func (s *Server) templateNamed(name string) (template, error) {
	if len(name) > maxTemplate {
		return template{}, policy.Bad("templateID", fmt.Sprintf("of %d bytes", len(name)), "has at most %d", maxTemplate)
	}
	bare := strings.TrimSuffix(name, ":default")
	for _, t := range known {
		if t.name == bare {
			return t, nil
		}
	}
	return template{name: bare, image: bare}, nil
}

// request returns the request for a template's sandboxes.
func (t template) request() unitask.Request {
	return unitask.Request{Image: t.image, MemoryMB: t.memoryMB, Timeout: policy.MaxTimeout}
}

// templateView is a template for clients.
type templateView struct {
	ID     string   `json:"templateID"`
	Build  string   `json:"buildID"`
	CPUs   int      `json:"cpuCount"`
	Memory int      `json:"memoryMB"`
	Disk   int      `json:"diskSizeMB"`
	Public bool     `json:"public"`
	Names  []string `json:"names"`
	Alias  []string `json:"aliases"`
	Status string   `json:"buildStatus"`
	*templateTimes
}

// templateTimes are the parts of a template's form that unitask does not have for its own ones.
type templateTimes struct {
	Created   string  `json:"createdAt"`
	Updated   string  `json:"updatedAt"`
	CreatedBy *string `json:"createdBy"`
	Spawned   *string `json:"lastSpawnedAt"`
	Spawns    int     `json:"spawnCount"`
	Builds    int     `json:"buildCount"`
	Daemon    string  `json:"envdVersion"`
}

func (s *Server) listTemplates(w http.ResponseWriter, r *http.Request) {
	views := []templateView{}
	for _, t := range known {
		memory := max(t.memoryMB, policy.DefaultMemoryMB)
		views = append(views, templateView{ID: t.name, Build: t.name, CPUs: 1, Memory: memory, Disk: memory / 2, Public: true,
			Names: []string{t.name}, Alias: []string{t.name}, Status: "ready"})
	}
	if !strings.HasPrefix(r.URL.Path, "/default") {
		views = append(views, s.builder.views(s.opts.Caller(r).Name)...)
	}
	writeJSON(w, http.StatusOK, views)
}

// ofTemplate serves /templates/aliases/ALIAS and /templates/ID/tags.
func (s *Server) ofTemplate(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.PathValue("id") == "aliases":
		s.templateAlias(w, r, r.PathValue("of"))
	case r.PathValue("of") == "tags":
		s.listTags(w, r)
	default:
		writeError(w, http.StatusNotFound, "unitask has no "+r.Method+" "+r.URL.Path+": docs/e2b.md lists what it has")
	}
}

func (s *Server) templateAlias(w http.ResponseWriter, r *http.Request, alias string) {
	answer := func(id string, public bool) {
		writeJSON(w, http.StatusOK, map[string]any{"templateID": id, "public": public})
	}
	for _, t := range known {
		if t.name == alias {
			answer(t.name, true)
			return
		}
	}
	if one := s.builder.find(alias, s.opts.Caller(r).Name); one != nil {
		answer(one.of.id, false)
		return
	}
	writeError(w, http.StatusNotFound, fmt.Sprintf("template %.80q: there is none", alias))
}
