package unitask_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
)

// fleetFunc is a fleet that consists of one function.
type fleetFunc func(context.Context, *unitask.FleetRun) (*unitask.Result, error)

func (f fleetFunc) Run(ctx context.Context, run *unitask.FleetRun) (*unitask.Result, error) {
	return f(ctx, run)
}

// A file that was truncated on its way from a worker is not an artifact.
func TestArtifactThatIsCut(t *testing.T) {
	broken := errors.New("the connection is gone")
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t),
		Fleet: fleetFunc(func(_ context.Context, run *unitask.FleetRun) (*unitask.Result, error) {
			res := &unitask.Result{Outcome: unitask.OutcomeExited}
			if err := run.Artifact("whole", 0o644, strings.NewReader("text")); err != nil {
				return res, err
			}
			return res, run.Artifact("cut", 0o644, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)))
		})})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	out := t.TempDir()
	res, err := rt.Run(t.Context(), unitask.Request{Code: "1"}, unitask.IO{Out: out})
	if !errors.Is(err, broken) || res == nil {
		t.Fatalf("%+v, %v", res, err)
	}
	if len(res.Artifacts) != 1 || res.Artifacts[0].Path != "whole" || len(res.ArtifactsRefused) != 1 ||
		res.ArtifactsRefused[0].Path != "cut" {
		t.Errorf("%+v; refused %+v", res.Artifacts, res.ArtifactsRefused)
	}
	for _, name := range []string{filepath.Join(out, "cut"), rt.Runs().Path(res.RunID, "out/cut")} {
		if _, err := os.Stat(name); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
