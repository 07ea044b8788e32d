package unitask_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
)

const (
	modelKey = "sk-proj-aV3rySecretKeyOfAModel0123456789"
	forgeKey = "ghp_aV3rySecretTokenOfAForge0123456789"
)

// modelAPI has the shape of OpenAI's chat completions: JSON, and a stream of server-sent events.
func modelAPI(m *http.ServeMux) {
	m.HandleFunc("POST good.example/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Model    string
			Messages []struct{ Role, Content string }
			Stream   bool
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("Authorization") != "Bearer "+modelKey {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w,
				`{"error":{"message":"Incorrect API key provided: %s.","type":"invalid_request_error","code":"invalid_api_key"}}`,
				strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
			return
		}
		if json.NewDecoder(r.Body).Decode(&in) != nil || len(in.Messages) == 0 {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w,
				`{"error":{"message":"we could not parse the JSON body of your request","type":"invalid_request_error"}}`)
			return
		}
		words := strings.Fields("you said: " + in.Messages[len(in.Messages)-1].Content)
		if !in.Stream {
			_ = json.NewEncoder(w).Encode(map[string]any{"id": "chatcmpl-1", "object": "chat.completion", "model": in.Model,
				"choices": []any{map[string]any{"index": 0, "finish_reason": "stop",
					"message": map[string]any{"role": "assistant", "content": strings.Join(words, " ")}}}})
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, word := range words {
			text, _ := json.Marshal(map[string]any{"object": "chat.completion.chunk",
				"choices": []any{map[string]any{"index": 0, "delta": map[string]any{"content": word + " "}}}})
			fmt.Fprintf(w, "data: %s\n\n", text)
			w.(http.Flusher).Flush()
			takeTime(r.Context(), 5*time.Millisecond)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
}

// forgeAPI has the shape of GitHub's REST API: pages with Link, conditional requests, creation, and 404 for a
// repository that the client may not see.
func forgeAPI(m *http.ServeMux) {
	m.HandleFunc("a.b.wild.example/repos/acme/app/issues", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("X-RateLimit-Remaining", "4999")
		if r.Header.Get("Authorization") != "Bearer "+forgeKey || r.Header.Get("User-Agent") == "" {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message":"Not Found"}`)
			return
		}
		page := r.URL.Query().Get("page")
		switch {
		case r.Method == http.MethodPost:
			var in struct{ Title string }
			if json.NewDecoder(r.Body).Decode(&in) != nil {
				w.WriteHeader(http.StatusUnprocessableEntity)
				return
			}
			w.Header().Set("Location", "https://a.b.wild.example/repos/acme/app/issues/3")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"number":3,"title":%q}`, in.Title)
		case r.Header.Get("If-None-Match") == `W/"one"`:
			w.WriteHeader(http.StatusNotModified)
		case page == "2":
			fmt.Fprint(w, `[{"number":1,"title":"first"}]`)
		default:
			w.Header().Set("ETag", `W/"one"`)
			w.Header().Set("Link", `<https://a.b.wild.example/repos/acme/app/issues?page=2>; rel="next"`)
			fmt.Fprint(w, `[{"number":2,"title":"second"}]`)
		}
	})
}

// TestEgressAPIs checks that models' usual code for a model's and a forge's API works. The machine never has the keys,
// and each is for its own host only.
func TestEgressAPIs(t *testing.T) {
	needVM(t)
	web := newSite(t, modelAPI, forgeAPI)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Upstream: web.upstream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	run := func(kernel image.Kernel, language, code, want string) {
		t.Helper()
		res, err := rt.Run(t.Context(), unitask.Request{Kernel: kernel, Language: language, Code: code, CA: web.ca,
			Timeout: 2 * time.Minute, AllowNet: []string{"good.example", "a.b.wild.example"},
			Secrets: map[string]string{"OPENAI_API_KEY": modelKey, "GITHUB_TOKEN": forgeKey},
			SecretHosts: map[string][]string{"OPENAI_API_KEY": {"good.example:header.authorization"},
				"GITHUB_TOKEN": {"*.wild.example"}}}, unitask.IO{})
		if err != nil || string(res.Stdout) != want {
			t.Errorf("%s %s: %v\n%s%s", kernel, language, err, res.Stdout, res.Stderr)
		}
	}
	programs := testarchive.Open(t, "testdata/egressapis.txtar")
	for _, kernel := range kernels(t) {
		run(kernel, "mjs", programs.File("usual.mjs"),
			"you said: good morning\nyou said: good morning true\n401 invalid_api_key\nsecond,first\n304\n"+
				"201 https://a.b.wild.example/repos/acme/app/issues/3 3\n403\n")
	}
	run("linux", "python", programs.File("usual.py"),
		"you said: good morning\nyou said: good morning\n200 first 4999\n")
}
