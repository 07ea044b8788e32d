package unitask_test

import (
	"strings"
	"testing"

	"github.com/unitask/unitask"
)

// A command without bounds gives its caller everything, and its record what the session's bound allows.
func TestSessionUnbounded(t *testing.T) {
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell", OutputBytes: 1 << 20}})
	for _, row := range []struct {
		unbounded bool
		want      int
	}{{true, 20 << 20}, {false, 1 << 20}} {
		got, last := 0, ""
		res, err := s.Exec(t.Context(), unitask.Command{Endless: true, Unbounded: row.unbounded, ResultBytes: 8,
			Args: []string{"sh", "-c", "yes | head -c 20971515; echo last"},
			Stdout: writerFunc(func(p []byte) (int, error) {
				got += len(p)
				last = string(p[max(0, len(p)-5):])
				return len(p), nil
			})})
		if err != nil || got != row.want || !res.Truncated || string(res.Stdout) != "y\ny\ny\ny\n" ||
			row.unbounded != strings.HasSuffix(last, "last\n") {
			t.Fatalf("unbounded %t: %d bytes, the end %q, %+v, %v", row.unbounded, got, last, res, err)
		}
		in, err := rt.History().Inspect(res.RunID, 2<<20)
		if err != nil || len(in.Stdout) != 1<<20 {
			t.Errorf("the record has %d bytes, %v", len(in.Stdout), err)
		}
	}
}
