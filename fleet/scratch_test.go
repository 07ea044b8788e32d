package fleet_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/testwait"
)

// The next worker on a host removes what a killed worker left of its runs, and nothing else.
func TestNothingLeftOfWorkers(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	folders := func() []string {
		found, err := filepath.Glob(filepath.Join(temp, "unitask-fleet-*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	ns := startNATS(t, nil)
	_, kill := startProcess(t, ns.ClientURL(), "")
	if len(folders()) != 1 {
		t.Fatal(folders())
	}
	killed := folders()[0]

	// Not a worker's: a link to somewhere, a file, a folder without a lock.
	precious, others := putOthersFolders(t, temp)

	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: quick})
	dir, gate := t.TempDir(), filepath.Join(t.TempDir(), "gate")
	if err := os.WriteFile(filepath.Join(dir, "data.txt"), []byte("brought along\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		_, err := rt.Run(t.Context(), unitask.Request{Code: "file /data/data.txt\nwait " + gate,
			Dirs: []unitask.Mount{{Host: dir, Guest: "/data"}}}, unitask.IO{})
		over <- err
	}()
	brought := filepath.Join(killed, "run-*", "files", "data", "data.txt")
	testwait.Until(t, "there is a "+brought, func() bool {
		found, _ := filepath.Glob(brought)
		return len(found) == 1
	})
	kill()
	if _, err := os.Stat(killed); err != nil {
		t.Fatal(err)
	}

	startProcess(t, ns.ClientURL(), "") // repeats the run
	if _, err := os.Stat(killed); err == nil {
		t.Error("the killed worker's folder is there")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
	for _, name := range others {
		if _, err := os.Lstat(filepath.Join(temp, name)); err != nil {
			t.Error(err)
		}
	}
	w, err := fleet.NewWorker(t.Context(), quickly(workerConfig(ns.ClientURL(), 1)), script{}) // beside a live one
	if err != nil {
		t.Fatal(err)
	}
	if len(folders()) != len(others)+2 {
		t.Error(folders())
	}
	w.Close()
	if len(folders()) != len(others)+1 {
		t.Error(folders())
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// putOthersFolders creates entries in the temporary folder that are not a worker's, whatever their names are.
func putOthersFolders(t *testing.T, temp string) (string, []string) {
	t.Helper()
	precious := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	others := []string{"unitask-fleet-link", "unitask-fleet-file", "unitask-fleet-new"}
	if err := os.Symlink(filepath.Dir(precious), filepath.Join(temp, others[0])); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(temp, others[1]), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(temp, others[2]), 0o700); err != nil {
		t.Fatal(err)
	}
	return precious, others
}
