package approval

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/run"
)

// stoppedDir names the folder of the run of TestHelperProcess.
const stoppedDir = "UNITASK_TEST_STOPPED"

// TestHelperProcess is another process with a question, for TestAttackStoppedProcess.
func TestHelperProcess(t *testing.T) {
	dir := os.Getenv(stoppedDir)
	if dir == "" {
		t.Skip("a part of TestAttackStoppedProcess")
	}
	l, err := localsocket.Listen(dir, controlSocket)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	q := run.Question{RunID: filepath.Base(dir), Host: "b.example:443"}
	a := &Asker{talk: time.Hour, open: &openQuestion{Question: q,
		answered: make(chan struct{})}}
	var group sync.WaitGroup
	a.listen(l, &group)
}

// Processes that are stopped do not block the questions of others: they are left out.
func TestAttackStoppedProcess(t *testing.T) {
	c, dir, _ := asking(t, "20261123T000009-aaaaaaaa")
	for i := range 3 {
		other := filepath.Join(filepath.Dir(dir), fmt.Sprintf("20261123T00000%d-aaaaaaaa", i))
		if err := os.MkdirAll(other, 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestHelperProcess$")
		cmd.Env = append(os.Environ(), stoppedDir+"="+other)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatal(line, err)
		}
		defer func() {
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}()
		if i == 0 {
			continue // it is not stopped
		}
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		// Its threads stop one after the other; only then is the process stopped.
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatal(status, err)
		}
	}
	begin := time.Now()
	list, err := c.Questions(t.Context())
	got := fmt.Sprint(err)
	for _, q := range list {
		got += " " + q.Host
	}
	attack.Check(t, "questions beside two stopped processes", "<nil> b.example:443 a.example:443", got)
	attack.Check(t, "questions beside two stopped processes, in time", "true",
		fmt.Sprint(time.Since(begin) < listTime+questionTime))
}
