package e2b

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
)

// steps is a list of steps: the type, then the arguments.
func steps(list ...[]string) (out []object) {
	for _, s := range list {
		out = append(out, object{"type": s[0], "args": s[1:]})
	}
	return out
}

// built builds a template, and returns the answer about it.
func (a *api) built(key headers, name string, recipe object) (is buildView) {
	a.t.Helper()
	in := a.want(http.StatusAccepted, "POST", "/v3/templates", object{"name": name, "memoryMB": 512}, key...)
	at := fmt.Sprintf("/templates/%s/builds/%s", in["templateID"], in["buildID"])
	a.want(http.StatusAccepted, "POST", "/v2"+at, recipe, key...)
	testwait.Within(a.t, 2*time.Minute, "the build's end", func() bool {
		status, text := a.send("GET", at+"/status", nil, key)
		is = buildView{}
		return status == http.StatusOK && json.Unmarshal(text, &is) == nil && is.Status != building
	})
	return is
}

// packed returns a tar of files: their names and texts. A name with " -> " is a link.
func packed(t *testing.T, files ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		h := &tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}
		if name, to, is := strings.Cut(files[i], " -> "); is {
			h.Name, h.Linkname, h.Typeflag = name, to, tar.TypeSymlink
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// upload uploads the files of a COPY step, and returns their hash.
func (a *api) upload(key headers, hash string, files []byte) string {
	a.t.Helper()
	link := a.want(http.StatusCreated, "GET", "/templates/any/files/"+hash, nil, key...)
	url := link["url"].(string)
	if status, text := a.send("PUT", strings.TrimPrefix(url, a.url), files, nil); status != http.StatusOK {
		a.t.Fatalf("%d %s", status, text)
	}
	if again := a.want(http.StatusCreated, "GET", "/templates/any/files/"+hash, nil, key...); again["present"] != true {
		a.t.Errorf("%v", again)
	}
	return hash
}

// The steps of a build, and the sandboxes of what it made.
func TestBuild(t *testing.T) {
	a := newAPI(t, true)
	list := steps([]string{"COPY", "src", "app", "", "0640"}, []string{"COPY", "src/*.txt", "texts", "root"},
		[]string{"COPY", "src/a.txt", "/opt/one/renamed"}, []string{"ENV", "GREETING", "good day"},
		[]string{"WORKDIR", "/srv/work"}, []string{"RUN", `echo "$GREETING" > told; id -un >> told`},
		[]string{"RUN", "id -un > by-root", "root"}, []string{"USER", "root"})
	hash := a.upload(nil, "h1", packed(t, "src/a.txt", "A", "src/b.txt", "B", "src/c.md", "C", "src/l.txt -> a.txt", ""))
	for i := range 3 {
		list[i]["filesHash"] = hash
	}
	is := a.built(nil, "mine:v1", object{"fromTemplate": "shell", "steps": list, "startCmd": "touch /tmp/up; sleep 1000",
		"readyCmd": "test -e /tmp/up"})
	if is.Status != ready || is.Reason != nil || len(is.Entries) == 0 {
		t.Fatalf("%+v", is)
	}
	b := a.create(nil, object{"templateID": "mine:v1"})
	for line, want := range map[string]string{
		"pwd; id -un; echo $GREETING; cat told": "/srv/work\nroot\ngood day\ngood day\nuser\n", "cat by-root": "root\n",
		"cd /home/user && ls app texts && stat -c '%a %U' app/a.txt texts/a.txt": "app:\na.txt\nb.txt\nc.md\nl.txt\n\n" +
			"texts:\na.txt\nb.txt\nl.txt\n640 user\n644 root\n",
		"cat /opt/one/renamed; readlink /home/user/app/l.txt": "Aa.txt\n", "pgrep -x sleep | wc -l": "1\n",
	} {
		if r, err := b.run(line); err != nil || strings.ReplaceAll(r.stdout, " ", " ") != want {
			t.Errorf("%s: %q %q %v", line, r.stdout, r.stderr, err)
		}
	}
	name, value := as("user")
	if r, err := b.run("id -un", name, value); err != nil || r.stdout != "user\n" {
		t.Errorf("as the user: %+v %v", r, err)
	}
	a.tags(t)
	next := object{"fromTemplate": "mine:v1", "steps": steps([]string{"RUN", "cat told; exit 7"})}
	if is := a.built(nil, "next", next); is.Status != failed || is.Reason == nil ||
		is.Reason.Step != "1" || !strings.Contains(is.Reason.Message, "exit code is 7") ||
		!strings.Contains(strings.Join(is.Logs, "\n"), "good day\nuser") {
		t.Errorf("%+v", is)
	}
	a.want(http.StatusNoContent, "DELETE", "/templates/mine", nil)
	a.want(http.StatusNotFound, "GET", "/templates/mine", nil)
	if status, _ := a.send("POST", "/v2/sandboxes", object{"templateID": "mine:v1"}, nil); status == http.StatusCreated {
		t.Error("a sandbox of a deleted template")
	}
}

// tags tries the tags of the template mine:v1.
func (a *api) tags(t *testing.T) {
	t.Helper()
	if status, _ := a.send("POST", "/v2/sandboxes", object{"templateID": "mine"}, nil); status == http.StatusCreated {
		t.Error("a sandbox of a tag that there is not")
	}
	a.want(http.StatusCreated, "POST", "/templates/tags", object{"target": "mine:v1", "tags": []string{"default", "x"}})
	status, text := a.send("GET", "/templates/mine/tags", nil, nil)
	if status != http.StatusOK || strings.Count(string(text), `"tag"`) != 3 {
		t.Errorf("%d %s", status, text)
	}
	a.want(http.StatusNoContent, "DELETE", "/templates/tags", object{"name": "mine", "tags": []string{"x"}})
	a.want(http.StatusNotFound, "DELETE", "/templates/tags", object{"name": "mine", "tags": []string{"x"}})
	if is := a.want(http.StatusOK, "GET", "/templates/aliases/mine", nil); is["public"] != false {
		t.Errorf("%v", is)
	}
	if is := a.want(http.StatusOK, "GET", "/templates/mine", nil); len(is["builds"].([]any)) != 1 {
		t.Errorf("%v", is)
	}
	status, text = a.send("GET", "/templates", nil, nil)
	if status != http.StatusOK || !strings.Contains(string(text), `"mine"`) || !strings.Contains(string(text), `"base"`) {
		t.Errorf("%d %s", status, text)
	}
}

// Requests for builds that can't be carried out are refused, or fail with the reason.
func TestBadBuilds(t *testing.T) {
	a := newAPI(t, true)
	for name, c := range map[string]struct {
		body any
		want int
	}{
		"no name":            {object{}, 400},
		"a name with a path": {object{"name": "../x"}, 400},
		"a tag with a space": {object{"name": "x", "tags": []string{"a b"}}, 400},
		"unitask's own name": {object{"name": "base"}, 400},
		"little memory":      {object{"name": "x", "memoryMB": 1}, 400},
		"text":               {[]byte("{"), 400},
	} {
		if status, text := a.send("POST", "/v3/templates", c.body, nil); status != c.want {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	in := a.want(http.StatusAccepted, "POST", "/v3/templates", object{"name": "x"})
	at := fmt.Sprintf("/v2/templates/x/builds/%s", in["buildID"])
	for name, recipe := range map[string]object{
		"an unknown step":    {"steps": steps([]string{"HEALTHCHECK", "x"})},
		"a step without one": {"steps": steps([]string{"COPY", "x"})},
		"two bases":          {"fromImage": "a", "fromTemplate": "b"},
	} {
		if status, text := a.send("POST", at, recipe, nil); status != 400 {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	from := func(step ...string) object { return object{"fromTemplate": "shell", "steps": steps(step)} }
	for name, c := range map[string]struct {
		recipe object
		want   string
	}{
		"an image that is not":  {object{"fromImage": "localhost:1/test/none:1"}, "localhost:1/test/none:1"},
		"an image's login":      {object{"fromImage": "a:1", "fromImageRegistry": object{"type": "registry"}}, "no login"},
		"files that are not":    {from("COPY", "a", "b"), "not been uploaded"},
		"a source above":        {from("COPY", "../a", "b"), "not below"},
		"an owner's option":     {from("COPY", "a", "b", "--from=x"), "USER:GROUP"},
		"another user":          {from("USER", "bob"), "user and root"},
		"a variable's odd name": {from("ENV", "A=B", "c"), "names have no"},
	} {
		if is := a.built(nil, "bad", c.recipe); is.Status != failed || !strings.Contains(is.Reason.Message, c.want) {
			t.Errorf("%s: %+v", name, is)
		}
	}
}

// A caller tries another one's builds, and to fill the server by its own.
func TestAttackBuilds(t *testing.T) {
	a := newAPI(t, true, "alice", "mallory")
	key := func(name string) headers { return headers{keyHeader, name + "-token-0123456789"} }
	alice, mallory := key("alice"), key("mallory")
	hash := a.upload(alice, "hers", packed(t, "secret.txt", "secret"))
	list := steps([]string{"COPY", "secret.txt", "/opt/secret.txt"})
	list[0]["filesHash"] = hash
	if is := a.built(alice, "hers", object{"fromTemplate": "shell", "steps": list}); is.Status != ready {
		t.Fatalf("%+v", is)
	}
	is := a.want(http.StatusOK, "GET", "/templates/hers", nil, alice...)
	id := is["templateID"].(string)
	build := is["builds"].([]any)[0].(object)["buildID"].(string)
	for _, c := range []struct{ name, method, path string }{
		{"her template", "GET", "/templates/" + id},
		{"her template's end", "DELETE", "/templates/" + id},
		{"her alias", "GET", "/templates/aliases/hers"},
		{"her tags", "GET", "/templates/" + id + "/tags"},
		{"her build's log", "GET", "/templates/" + id + "/builds/" + build + "/logs"},
		{"her build's state", "GET", "/templates/" + id + "/builds/" + build + "/status"},
		{"an upload with a wrong token", "PUT", uploadPath + "wrong"},
		{"her build's start", "POST", "/v2/templates/" + id + "/builds/" + build},
		{"her tags' change", "POST", "/templates/tags"},
		{"her tags' end", "DELETE", "/templates/tags"},
		{"her template's change", "PATCH", "/templates/" + id},
	} {
		status, _ := a.send(c.method, c.path, object{"target": "hers", "name": "hers", "tags": []string{usualTag}}, mallory)
		attack.Check(t, "another caller's template: "+c.name, "404", fmt.Sprint(status))
	}
	status, _ := a.send("PUT", uploadPath+"wrong", []byte("x"), nil)
	attack.Check(t, "an upload without a key, with a wrong token", "401", fmt.Sprint(status))
	link := a.want(http.StatusCreated, "GET", "/templates/x/files/hers", nil, mallory...)
	attack.Check(t, "another caller's files by their hash", "not present", map[bool]string{true: "present",
		false: "not present"}[link["present"] == true])
	got := a.built(mallory, "stolen", object{"fromTemplate": "shell", "steps": list})
	refused := got.Status == failed && strings.Contains(got.Reason.Message, "have not been uploaded")
	attack.Check(t, "a build with another caller's files", "not uploaded", map[bool]string{true: "not uploaded"}[refused])
	got = a.built(mallory, "stolen", object{"fromTemplate": "hers"})
	attack.Check(t, "a build from another caller's template", failed, got.Status)
	got = a.built(mallory, "loud", object{"fromTemplate": "shell", "steps": steps([]string{"RUN",
		"head -c 20000000 /dev/zero | tr '\\0' x; yes | head -n 3000000"})})
	one, err := a.e2b.builder.of(got.Template, got.Build, "mallory")
	if err != nil {
		t.Fatal(err)
	}
	bytes := 0
	for _, e := range one.log {
		bytes += len(e.Message)
	}
	attack.Check(t, "a build that prints 26 MB", "cut", map[bool]string{true: "cut", false: "kept"}[got.Status == ready &&
		bytes <= maxBuildLog && len(one.log) <= maxLogEntries])
	for range maxUploadedEach {
		status, _ = a.send("GET", "/templates/x/files/"+newToken(), nil, mallory)
	}
	attack.Check(t, "many archives", "429", fmt.Sprint(status))
}

// A build over a container image of this home: its sandboxes have the user and the home of others, and its variables.
func TestBuildFromContainer(t *testing.T) {
	t.Parallel()
	a := newAPI(t, true)
	file := testhome.Debian(t, base, "test/debian:1", map[string]any{"Env": []string{"OF=image"}})
	made, err := a.rt.Catalog().Import(t.Context(), file, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if is := a.built(nil, "refused", object{"fromImage": "test/debian:1"}); is.Status != failed ||
		!strings.Contains(is.Reason.Message, "built-in ceiling") {
		t.Errorf("an image that the ceiling does not list: %+v", is)
	}
	ceiling, err := policy.ParseCeiling("/srv/unitask.toml", []byte(fmt.Sprintf("images = [%q]", made.Digest)))
	if err != nil {
		t.Fatal(err)
	}
	usual := a.e2b.opts.Caller
	a.e2b.opts.Caller = func(r *http.Request) unitask.Caller {
		caller := usual(r)
		caller.Ceiling = ceiling
		return caller
	}
	if is := a.built(nil, "refused", object{"fromImage": "test/other:1"}); is.Reason == nil ||
		!strings.HasSuffix(is.Reason.Message, "is allowed by the ceiling (key images)") {
		t.Errorf("an image that the ceiling's file does not list: %+v", is.Reason)
	}
	list := steps([]string{"COPY", "src", "app"}, []string{"WORKDIR", "/srv/work"},
		[]string{"RUN", `echo "$OF $HOME" > told; stat -c %U ~/app/a.txt told >> told`})
	list[0]["filesHash"] = a.upload(nil, "h1", packed(t, "src/a.txt", "A"))
	is := a.built(nil, "contained", object{"fromImage": made.Digest, "steps": list})
	if is.Status != ready || is.Reason != nil {
		t.Fatalf("%+v", is)
	}
	b := a.create(nil, object{"templateID": "contained"})
	want := "image /home/user\nroot\nroot\nA/srv/work\non\nroot:0\n"
	r, err := b.run("cat told ~/app/a.txt; pwd; sudo echo on; head -c 5 /etc/passwd; id -u user")
	if err != nil || r.stdout != want {
		t.Errorf("%q %q %v", r.stdout, r.stderr, err)
	}
}
