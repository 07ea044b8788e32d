package unitask_test

import (
	"io"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

// Nanos tries to write what is dirty to its disk every five seconds, which can't be
// written, and does nothing else meanwhile. Files that the code has written and closed are
// not among it: QEMU has hardly been asked to write when such a moment has gone by.
func TestNanosSettledFiles(t *testing.T) {
	needNanos(t, image.HostArch())
	t.Parallel()
	slot(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	const files = 400
	code := `const fs = require("fs"); for (let i = 0; i < ` + itoa(files) + `; i++) fs.writeFileSync("/tmp/" + i, "text");
		setTimeout(() => { console.log("waits"); process.stdin.on("data", () => process.exit()) }, 5500)`
	stdin, feed := io.Pipe()
	ids, waits := make(chan string, 1), make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		_, err := rt.Run(t.Context(), unitask.Request{Kernel: image.Nanos, Code: code, Timeout: time.Minute}, unitask.IO{Stdin: stdin,
			Stdout: writerFunc(func(b []byte) (int, error) { waits <- struct{}{}; return len(b), nil }),
			Events: func(e unitask.Event) {
				if e.Kind == unitask.EventRecord {
					ids <- e.Message
				}
			}})
		ended <- err
	}()
	select {
	case <-waits:
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	}
	monitor, _, err := rt.Attach(t.Context(), <-ids, vmm.AccessRead, false)
	if err != nil {
		t.Fatal(err)
	}
	var disks []struct {
		Stats struct {
			Failed int `json:"failed_wr_operations"`
		} `json:"stats"`
	}
	err = monitor.Do(t.Context(), "query-blockstats", nil, &disks)
	_ = monitor.Disconnect()
	if err != nil || len(disks) != 1 {
		t.Fatal(err, disks)
	}
	feed.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := disks[0].Stats.Failed; n >= files/2 {
		t.Errorf("the kernel tried to write to its disk %d times", n)
	}
}
