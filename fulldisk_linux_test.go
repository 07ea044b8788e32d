package unitask_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testlack"
)

// A disk that is full in the middle of an image leaves nothing of it.
func TestImportOnFullDisk(t *testing.T) {
	needVM(t) // whose parts the image is made of
	home := t.TempDir()
	testlack.Disk(t, home, "size=1m")
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	_, err = rt.ImportImage(t.Context(), boxImage(t, "test/box:1", nil), "", "")
	if err == nil || !strings.Contains(err.Error(), "no space left on device") || !strings.Contains(err.Error(), "image.tar") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(home, "containers")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// What a step has left in /out and the host's disk has no room for is an error, and not forgotten: it comes when there is.
func TestSessionOutOnFullDisk(t *testing.T) {
	needVM(t)
	home := newHome(t)
	runs := filepath.Join(home, "runs")
	if err := os.Mkdir(runs, 0o700); err != nil {
		t.Fatal(err)
	}
	testlack.Disk(t, runs, "size=3m")
	rt := openRuntime(t, unitask.Options{Home: home})
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "shell"}})
	res, err := s.Run(t.Context(), unitask.Step{Code: "head -c 4000000 /dev/urandom > /out/much; echo done"})
	if host := (*unitask.HostError)(nil); !errors.As(err, &host) || !errors.Is(err, syscall.ENOSPC) || len(res.Artifacts) > 0 {
		t.Errorf("%v, %+v", err, res)
	}
	testlack.Grow(t, runs, "size=30m")
	if res, err = s.Run(t.Context(), unitask.Step{Code: "true"}); err != nil || cameBack(t, rt, res) != "much=4000000 bytes" {
		t.Errorf("%v, %q", err, cameBack(t, rt, res))
	}
}
