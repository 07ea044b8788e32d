package fleet_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testhome"
)

// The output of a session's step is kept until its end, and takes no more of a worker's memory than its tenant may use.
func TestAttackSessionOutput(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("VmHWM is Linux's")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	ns := startNATS(t, nil)
	_, pid, _ := startWorkerProcess(t, ns.ClientURL(), "", "FLEET_TEST_HOME="+testhome.New(t, base))
	_, client := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: quick})
	s, err := client.NewSession(t.Context(), unitask.Caller{},
		unitask.SessionRequest{Request: unitask.Request{Language: "python", OutputBytes: 1 << 30}})
	if err != nil {
		t.Fatal(err)
	}
	value(t, s, "x = 40; x", "40")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = s.Run(ctx, unitask.Step{Code: "for i in range(96): print('x' * (1 << 20))", Timeout: 50 * time.Second})
	got := "bounded"
	if most := peak(t, pid); err == nil || most > mostMemory {
		got = fmt.Sprint(most, " MiB, ", err)
	}
	attack.Check(t, "a session's step prints 96 MiB", "bounded", got)
	t.Logf("%d MiB, %v", peak(t, pid), err)
	_ = s.Close(t.Context())
	again, err := client.NewSession(t.Context(), unitask.Caller{},
		unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
	if err != nil {
		t.Fatal(err)
	}
	value(t, again, "42", "42")
	if err := again.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
