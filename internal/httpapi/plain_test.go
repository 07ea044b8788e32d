package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

// Errors about a request are sentences. They name the place, and do not repeat the whole request.
func TestPlainErrors(t *testing.T) {
	a := newAPI(t, setup{})
	for _, c := range []struct {
		body   any
		detail string
	}{
		{object{"language": "python"}, `the body: it lacks "code"`},
		{object{"code": "1", "language": "python", "timeout": 3}, `the body: it has unknown members: "timeout"`},
		{object{"code": 1, "language": "python"}, "the body: code: the type is integer, and must be string"},
		{object{"code": "1", "timeoutSeconds": 0}, "the body: timeoutSeconds: it must be more than 0"},
	} {
		if p := a.refused(422, "usage", "POST", "/v1/runs", c.body); p["detail"] != c.detail {
			t.Errorf("%v: %s, want %s", c.body, p["detail"], c.detail)
		}
	}
	for path, detail := range map[string]string{"/v1/runs?limit=0": `limit: "0": the least is 1`,
		"/v1/runs?limit=1001": `limit: "1001": the most is `, "/v1/runs?status=x": `status: "x": use one of: `} {
		if p := a.refused(400, "usage", "GET", path, nil); !strings.HasPrefix(p["detail"].(string), detail) {
			t.Errorf("%s: %s, want %s", path, p["detail"], detail)
		}
	}
	p := a.refused(400, "usage", "POST", "/v1/runs", python("1"), keyHeader, strings.Repeat("x", 300))
	if detail := p["detail"].(string); !strings.HasSuffix(detail, "it has 300 characters, and the most is 200") ||
		len(detail) > 150 {
		t.Error(detail)
	}
	p = a.refused(404, "session.gone", "GET", "/v1/sessions/20261128-101500123-abcdef", nil)
	if strings.Contains(p["detail"].(string), "with op") {
		t.Error(p["detail"])
	}
}

// Paths that are not clean are problems of this API, which name the clean path, and no redirects.
func TestUncleanPaths(t *testing.T) {
	a := newAPI(t, setup{})
	for _, path := range []string{"//v1/runs", "/v1//runs", "/x/../v1/runs", "/v1/./runs", "/v1/runs//"} {
		p := a.refused(404, "path", "GET", path, nil)
		if p != nil && !strings.Contains(p["remedy"].(string), `"/v1/runs"`) {
			t.Errorf("%s: %s", path, p["remedy"])
		}
	}
	a.refused(404, "path", "GET", "/v1", nil)
	a.refused(404, "path", "GET", "/v1/runs/", nil)
	res, _ := a.send("GET", "/openapi.json", nil)
	if res.StatusCode != 200 {
		t.Error(res.StatusCode)
	}
}

// Only the ports of sessions, whose pages have an origin of their own, may be embedded.
func TestEmbeds(t *testing.T) {
	s := New(Options{Version: "1"})
	for path, want := range map[string]bool{"/v1/sessions/ID/ports/8000/a.png": true, "/v1/sessions/ID/ports/8000": true,
		"/v1/runs": false, "/v1/sessions/ID": false, "/v1/sessions/ID/files": false, "/v1/doctor": false,
		"/v1/sessions/a/b/ports/1/": false, "/v1/sessions/ID/ports/8000x": false} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://x"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s.Embeds(r) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}
