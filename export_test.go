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

// ReadInputs returns the content of every file that a request would bring into the
// guest, by its path there; between is called after the check, before the reading.
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

// SetBringTime changes how long what a step brings may take.
func SetBringTime(rt *Runtime, d time.Duration) { rt.sessions.BringTime = d }

// ResolveRequest is what a request asks for, as it is recorded, and what comes of it.
func ResolveRequest(req Request, ceiling *policy.Ceiling) (policy.Request, policy.Effective, []policy.Denial, error) {
	var brought hostfiles.Set
	defer brought.Close()
	return program.Resolve(catalog.Request{Request: req}, ceiling, &brought)
}

// contents is a guest that keeps what is put into it.
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

// PanicOnOOM has a runtime's linux kernels panic where they would end a process that
// needs more memory than there is; args are more of the kernel's.
func PanicOnOOM(rt *Runtime, args string) {
	_ = rt.engine.Source.Close()
	arg := func(memoryMB int) string { return node.HeapArg(memoryMB) + " sysctl.vm.panic_on_oom=1 " + args }
	all := language.Programs()
	all["node"] = machine.Program{Arg: arg, Rehearsal: all["node"].Rehearsal}
	options := machine.Options{Home: rt.opts.Home, Images: rt.engine.Images, Accel: rt.opts.Accel, Programs: all}
	rt.engine.Source = machine.Open(options)
}

// SetApprovalTime puts another time in for approvalTime.
func SetApprovalTime(rt *Runtime, d time.Duration) { rt.engine.ApprovalTime = d }

// SetGrace puts another time in for collectGrace.
func SetGrace(rt *Runtime, grace time.Duration) { rt.engine.Grace = grace }

// CollectGrace is what it is otherwise.
const CollectGrace = engine.CollectGrace

// Settle waits for what a runtime does in the background.
func Settle(ctx context.Context, rt *Runtime) { rt.engine.Source.Settle(ctx) }

// Alone says that what a request's code is compiled to may be kept for other runs.
func Alone(rt *Runtime, req Request, streams IO) (bool, error) {
	made, err := rt.engine.Prepare(Caller{}, catalog.Request{Request: req}, streams, engine.Purpose{})
	if err != nil {
		return false, err
	}
	defer made.Code.Close()
	return made.Code.Alone(), nil
}
