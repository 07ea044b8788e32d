package unitask

import (
	"context"
	"io"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// ReadInputs returns the content of every file that a request would bring into the guest, by its path there. It calls
// between after the check and before the reading.
func ReadInputs(req Request, ceiling *policy.Ceiling, between func()) (map[string]string, []policy.Denial, error) {
	var brought hostfiles.Set
	defer brought.Close()
	_, _, denials, err := program.Resolve(catalog.Request{Request: req}, ceiling, &brought)
	if err != nil {
		return nil, denials, err
	}
	if between != nil {
		between()
	}
	found := contents{}
	return found, denials, brought.Put(context.Background(), found, hostfiles.All, func(hostfiles.Sent) {})
}

// SetBringTime changes the time limit for the files that a step brings.
func SetBringTime(rt *Runtime, d time.Duration) { rt.sessions.BringTime = d }

// ResolveRequest returns a request as recorded, and the resolved grants.
func ResolveRequest(req Request, ceiling *policy.Ceiling) (policy.Request, policy.Effective, []policy.Denial, error) {
	var brought hostfiles.Set
	defer brought.Close()
	return program.Resolve(catalog.Request{Request: req}, ceiling, &brought)
}

// contents is a guest that keeps the files that it receives.
type contents map[string]string

func (c contents) Put(f guest.File, content io.Reader) error {
	c[f.Path] = f.Mode.Type().String() + f.Target
	if content == nil {
		return nil
	}
	text, err := io.ReadAll(content)
	c[f.Path] = string(text)
	return err
}

// PanicOnOOM makes a runtime's linux kernels panic instead of ending a process that needs too much memory; args are
// more kernel arguments.
func PanicOnOOM(rt *Runtime, args string) {
	_ = rt.engine.Source.Close()
	arg := func(memoryMB int) string { return node.HeapArg(memoryMB) + " sysctl.vm.panic_on_oom=1 " + args }
	all := language.Programs()
	all["node"] = machine.Program{Arg: arg, Rehearsal: all["node"].Rehearsal}
	options := machine.Options{Home: rt.opts.Home, Images: rt.engine.Images, Accel: rt.opts.Accel, Programs: all}
	rt.engine.Source = machine.Open(options)
}

// SetApprovalTime replaces approvalTime.
func SetApprovalTime(rt *Runtime, d time.Duration) { rt.engine.ApprovalTime = d }

// SetGrace replaces collectGrace.
func SetGrace(rt *Runtime, grace time.Duration) { rt.engine.Grace = grace }

// CollectGrace is the default of collectGrace.
const CollectGrace = engine.CollectGrace

// Settle waits for a runtime's background work.
func Settle(ctx context.Context, rt *Runtime) { rt.engine.Source.Settle(ctx) }

// Alone reports whether the compiled program of a request may be kept for other runs.
func Alone(rt *Runtime, req Request, streams IO) (bool, error) {
	made, err := rt.engine.Prepare(Caller{}, catalog.Request{Request: req}, streams, engine.Purpose{})
	if err != nil {
		return false, err
	}
	defer made.Code.Close()
	return made.Code.Alone(), nil
}
