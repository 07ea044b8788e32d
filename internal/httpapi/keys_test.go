package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/home"
)

// begun returns a key of a call that has begun, and its folder.
func begun(t *testing.T, ks *keys, dir, caller, key string) *keyed {
	t.Helper()
	k, first := ks.begin(dir, caller, key, "request")
	if err := k.load(); err != nil || !first {
		t.Fatal(first, err)
	}
	return k
}

func TestKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	var ks keys
	k := begun(t, &ks, dir, "alice", "a")
	if other, first := ks.begin(dir, "alice", "a", "request"); other != k || first {
		t.Error("a second call has the key, too")
	}
	if _, first := ks.begin(dir, "bob", "a", "request"); !first {
		t.Error("another caller has the same key")
	}
	k.answered(&answer{Status: 201, Header: http.Header{"Location": {"/x"}}, Body: object{"a": 1}})
	k.close()
	var next keys // of the next server
	again := begun(t, &next, dir, "alice", "a")
	if s := again.stored; !again.found || s.Status != 201 || string(s.Body) != `{"a":1}` || s.Request != "request" ||
		s.Header.Get("Location") != "/x" {
		t.Errorf("%+v", again.stored)
	}
	again.close()

	// Of an answer that is too long, the key keeps the id of the run or session.
	k = begun(t, &next, dir, "alice", "long")
	k.began("id")
	k.answered(&answer{Body: strings.Repeat("x", maxStored)})
	k.close()
	if k = begun(t, &next, dir, "alice", "long"); k.stored.Status != 0 || k.stored.ID != "id" || k.stored.Body != nil {
		t.Errorf("%+v", k.stored)
	}
	k.close()

	// A call that began nothing leaves no key. Another error is an answer.
	for status, left := range map[int]bool{429: false, 503: false, 422: false, 502: true, 409: true} {
		key := fmt.Sprint(status)
		k = begun(t, &next, dir, "alice", key)
		k.failed(&Problem{Status: status, Code: "code"})
		k.close()
		if k = begun(t, &next, dir, "alice", key); k.found != left || left && k.stored.Status != status {
			t.Errorf("%d: %+v", status, k.stored)
		}
		k.close()
	}
	if st, err := os.Stat(k.path()); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
}

func TestAttackKeys(t *testing.T) {
	dir := t.TempDir()
	var ks keys
	k := begun(t, &ks, dir, "mallory", "first")
	k.close()
	caller, _, _ := strings.Cut(k.name, "-")
	for i := range maxCallerKeys {
		ks.note(fmt.Sprintf("%s-%d.json", caller, i), 1)
	}
	load := func(caller, key string) string {
		k, _ := ks.begin(dir, caller, key, "request")
		defer k.close()
		err := k.load()
		if full := new(unitask.BusyError); errors.As(err, &full) && full.After > keyTime-time.Hour {
			return "busy for a day"
		}
		return fmt.Sprint(err)
	}
	attack.Check(t, "one key more than a caller may have", "busy for a day", load("mallory", "more"))
	attack.Check(t, "a key that it has", "<nil>", load("mallory", "first"))
	attack.Check(t, "another caller's key meanwhile", "<nil>", load("alice", "first"))
	clear(ks.files)
	ks.note(caller+"-1.json", maxKeyBytes)
	attack.Check(t, "a key beyond the bytes of a caller's answers", "busy for a day", load("mallory", "more"))

	ks.pruned = time.Time{}
	old := filepath.Join(dir, k.name)
	text, _ := json.Marshal(storedKey{Request: "request", Begun: time.Now().Add(-keyTime - time.Hour), Status: 200})
	if err := os.WriteFile(old, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ks.files = map[string]keyFile{k.name: {1, time.Now().Add(-keyTime - time.Hour)}}
	attack.Check(t, "a key of yesterday", "<nil>", load("mallory", "other"))
	_, err := os.Stat(old)
	attack.Check(t, "the file of a key of yesterday", "true", fmt.Sprint(errors.Is(err, fs.ErrNotExist)))
}

// A key whose call has begun, and whose answer is lost, begins nothing.
func TestAttackLostAnswer(t *testing.T) {
	a := newAPI(t, setup{})
	dir := home.Dir(a.home).Idempotency()
	name := begun(t, &keys{}, dir, unitask.LocalOwner(os.Geteuid()), "k").name
	in := python("print(1)")
	value, _ := json.Marshal(in)
	for what, text := range map[string]string{
		"that is empty": "", "that is cut": `{"request": "`, "that is no JSON": "\x00\x00",
		"of a run that is gone": fmt.Sprintf(`{"request": %q, "begun": %q, "id": "20260101-000000000-aaaaaa"}`,
			digest("createRun", "/v1/runs", "", digestOf(value)), time.Now().Format(time.RFC3339)),
		"with the id of another thing": fmt.Sprintf(`{"request": %q, "begun": %q, "id": "../x"}`,
			digest("createRun", "/v1/runs", "", digestOf(value)), time.Now().Format(time.RFC3339)),
		"without an answer": fmt.Sprintf(`{"request": %q, "begun": %q}`,
			digest("createRun", "/v1/runs", "", digestOf(value)), time.Now().Format(time.RFC3339)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		res, body := a.send("POST", "/v1/runs", in, keyHeader, "k")
		var p Problem
		_ = json.Unmarshal(body, &p)
		want := "409 unknown"
		if strings.Contains(what, "gone") || strings.Contains(what, "another") {
			want = "404 run.gone"
		}
		attack.Check(t, "a key's file "+what, want, fmt.Sprint(res.StatusCode, " ", p.Code))
	}
	attack.Check(t, "runs after all that", "0", fmt.Sprint(len(a.want(200, "GET", "/v1/runs", nil)["runs"].([]any))))
}

// digestOf is what readBody makes of a body.
func digestOf(body []byte) string {
	sum := digest(string(body) + "\n")
	return sum
}
