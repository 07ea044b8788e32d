package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// next returns the ids of the new events.
func next(t *testing.T, e *Events, after int64) (ids []string, err error) {
	t.Helper()
	err = e.Next(after, func(text []byte) error {
		var event Event
		if err := json.Unmarshal(text, &event); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, event.ID)
		return nil
	})
	return ids, err
}

// Each entry is one event, delivered once.
func TestEvents(t *testing.T) {
	l, dir := filled(t, 3)
	var event []byte
	if err := l.Events().Next(2, func(text []byte) error {
		event = append([]byte(nil), text...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	source := l.Events()
	if _, err := next(t, source, 0); err != nil {
		t.Fatal(err)
	}
	want := `{"specversion":"1.0","id":"3","source":"` + source.source +
		`","type":"unitask.run.started","time":"1970-01-01T00:00:02Z","subject":"run2",` +
		`"datacontenttype":"application/json","data":{"schema":1,"time":"1970-01-01T00:00:02Z","kind":"run.started",` +
		`"run":"run2","detail":{"i":2}}}`
	if string(event) != want {
		t.Errorf("%s\nexpected\n%s", event, want)
	}
	other, _ := filled(t, 1)
	if err := other.Append(Entry{Kind: RunEnded}); err != nil {
		t.Fatal(err)
	}
	e := l.Events()
	stop := errors.New("stop")
	if err := e.Next(0, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	for _, row := range []struct {
		add  int
		want string
	}{{0, "[1 2 3]"}, {0, "[]"}, {2, "[4 5]"}, {0, "[]"}} {
		for range row.add {
			if err := l.Append(Entry{Time: time.Unix(9, 0), Kind: RunEnded}); err != nil {
				t.Fatal(err)
			}
		}
		if ids, err := next(t, e, 0); err != nil || fmt.Sprint(ids) != row.want {
			t.Errorf("%v %v, expected %s", ids, err, row.want)
		}
	}
	none := In(t.TempDir()).Events()
	if ids, err := next(t, none, 0); err != nil || len(ids) != 0 {
		t.Error(ids, err)
	}
	for name, change := range map[string]func() error{
		"a log that has fewer lines": func() error { return nil },
		"a log whose first line is another": func() error {
			name := filepath.Join(dir, linesFile)
			text, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(name, []byte(strings.Replace(string(text), "run0", "run9", 1)), 0o600)
			}
			return err
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		after := int64(0)
		if strings.HasSuffix(name, "fewer lines") {
			after = 100
		}
		ids, err := next(t, e, after)
		got := fmt.Sprint(ids)
		if err != nil && strings.Contains(err.Error(), "it is another one now") || err != nil &&
			err.Error() == "the log is another one now" {
			got = "refused"
		}
		attack.Check(t, "events of "+name, "refused", got)
	}
	attackBrokenLine(t)
}

// attackBrokenLine changes a line so that it is no entry.
func attackBrokenLine(t *testing.T) {
	broken, at := filled(t, 2)
	name := filepath.Join(at, linesFile)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(strings.Replace(string(text), `"kind":"run.started","run":"run1"`,
		`"kind":{"run.started":1},"r":"run1"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	ids, err := next(t, broken.Events(), 0)
	attack.Check(t, "events of a line that is no entry", "[1] line 2 is no entry: `unitask audit verify` says more",
		fmt.Sprint(ids, " ", err))
}
