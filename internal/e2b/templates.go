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
}

func (s *Server) listTemplates(w http.ResponseWriter, _ *http.Request) {
	views := []templateView{}
	for _, t := range known {
		memory := max(t.memoryMB, policy.DefaultMemoryMB)
		views = append(views, templateView{ID: t.name, Build: t.name, CPUs: 1, Memory: memory, Disk: memory / 2, Public: true,
			Names: []string{t.name}, Alias: []string{t.name}, Status: "ready"})
	}
	writeJSON(w, http.StatusOK, views)
}

func (s *Server) templateAlias(w http.ResponseWriter, r *http.Request) {
	alias := r.PathValue("alias")
	for _, t := range known {
		if t.name == alias {
			writeJSON(w, http.StatusOK, struct {
				ID     string `json:"templateID"`
				Public bool   `json:"public"`
			}{t.name, true})
			return
		}
	}
	writeError(w, http.StatusNotFound, fmt.Sprintf("template %.80q: there is none", alias))
}
