package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
)

// dropFiles posts the form with files; token is the form's.
func dropFiles(t *testing.T, c *Console, token string, files map[string]string) int {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for name, value := range map[string]string{"form": token, "language": "js", "code": "1"} {
		if err := form.WriteField(name, value); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		to, err := form.CreateFormFile("files", name)
		if err == nil {
			_, err = io.WriteString(to, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	form.Close()
	r := httptest.NewRequest("POST", c.base+"/code", &body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Origin", "http://"+c.host)
	r.Host = c.host
	r.AddCookie(&http.Cookie{Name: cookieName, Value: c.cookie})
	c.mu.Lock()
	c.opened = time.Now()
	c.mu.Unlock()
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w.Code
}

// Files of the form reach the request by their last names only, as text, and within the form's bound.
func TestAttackConsoleDropped(t *testing.T) {
	c := testConsole(t, record.Open(testdir.Private(t)))
	got := make(chan []unitask.InlineFile, 1)
	c.Run = func(_ context.Context, _ unitask.Caller, req unitask.Request, _ unitask.IO) (*unitask.Result, error) {
		got <- req.InlineFiles
		return nil, errors.New("no machine")
	}
	code := dropFiles(t, c, c.form, map[string]string{"../../up/a.txt": "text"})
	attack.Check(t, "console: a dropped file with a path", "500 [{a.txt text}]", fmt.Sprint(code, " ", <-got))
	attack.Check(t, "console: a dropped file that is no text", "400", strconv.Itoa(dropFiles(t, c, c.form,
		map[string]string{"a": "\xff"})))
	attack.Check(t, "console: dropped files with another form's token", "403", strconv.Itoa(dropFiles(t, c, "x",
		map[string]string{"a": "text"})))
	attack.Check(t, "console: dropped files of 3 MiB", "403", strconv.Itoa(dropFiles(t, c, c.form,
		map[string]string{"a": strings.Repeat("x", 3<<20)})))
}

// What a session's code named its values and files is shown as text, and bounded.
func TestAttackConsoleInside(t *testing.T) {
	records := record.Open(testdir.Private(t))
	c := testConsole(t, records)
	id := sessionRecord(t, records)
	answers := map[string]sessiond.Answer{}
	c.Sessions = func(_ context.Context, r sessiond.Request, std sessiond.Streams) (sessiond.Answer, error) {
		switch {
		case r.Op == sessiond.OpList:
			return sessiond.Answer{Sessions: []sessiond.View{{ID: id, State: sessiond.Running, Began: time.Now()}}}, nil
		case r.Op == sessiond.OpChanges:
			_, err := io.WriteString(std.Stdout, `{"session":"`+id+`","host":"/x","changes":[{"path":"<b>\u001b[31m",`+
				`"before":{"kind":"file"}}]}`+"\n")
			return sessiond.Answer{}, err
		}
		return answers[r.Op+r.Name], nil
	}
	many := []string{}
	for n := range 100 {
		many = append(many, fmt.Sprint("v", n))
	}
	answers["get"] = sessiond.Answer{Names: append([]string{"<script>"}, many...)}
	answers["get<script>"] = sessiond.Answer{Value: json.RawMessage(`"<img src=x>` + strings.Repeat("y", 1<<20) + `"`)}
	answers["files"] = sessiond.Answer{Files: []unitask.SessionFile{{Path: "<i>"}}}
	for show, bad := range map[string][]string{"values": {"<script>", "<img", "<dt>v30</dt>"}, "files": {"<i>"},
		"changes": {"<b>", "\x1b"}} {
		w := asUser(c, "/session?id="+id+"&show="+show, nil)
		text := fmt.Sprint(w.Code)
		for _, b := range bad {
			if strings.Contains(w.Body.String(), b) {
				text += " " + b
			}
		}
		if w.Body.Len() > 100<<10 {
			text += " " + strconv.Itoa(w.Body.Len())
		}
		attack.Check(t, "console: a session's "+show, "200", text)
	}
}

// sessionRecord makes the record of a session of this user.
func sessionRecord(t *testing.T, records *record.Store) string {
	t.Helper()
	r, err := records.Create(time.Now(), unitask.LocalOwner(os.Geteuid()), record.ViaCLI, "code.js", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Record.Session = r.Record.ID
	if err := r.Update(); err != nil {
		t.Fatal(err)
	}
	return r.ID
}
