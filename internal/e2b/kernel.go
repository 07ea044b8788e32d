package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/pykernel"
)

// newKernel starts a kernel, and waits until it takes code.
func (box *sandbox) newKernel(ctx context.Context, cwd string) (*pykernel.Kernel, error) {
	lacks := func(err error) error {
		return fmt.Errorf("the template has no Python with IPython, which the code interpreter needs: %w", err)
	}
	k, err := pykernel.Start(ctx, box.session, pykernel.Options{Dir: cwd, Env: box.environment(defaultUser, nil),
		User: defaultUser})
	if err != nil {
		return nil, lacks(err)
	}
	for {
		select {
		case <-k.More:
			if slices.ContainsFunc(k.Take(), isReady) {
				return k, nil
			}
		case <-k.Over:
			return nil, lacks(k.Err())
		case <-ctx.Done():
			k.End()
			return nil, ctx.Err()
		}
	}
}

func isReady(text []byte) bool {
	var m struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(text, &m) == nil && m.Type == "ready"
}

// fields are the members of a kernel's messages that clients get, by the messages' types.
var fields = map[string][]string{
	"stdout": {"text", "timestamp"}, "stderr": {"text", "timestamp"},
	"error":                {"name", "value", "traceback"},
	"number_of_executions": {"execution_count"},
	"result": {"text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", "data", "chart",
		"extra", "is_main_result"},
}

// warmUp starts the kernel of the first Python context, so that its first code need not wait as long.
func (box *sandbox) warmUp() {
	of, err := box.contexts.find("", "python")
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	select {
	case of.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-of.turn }()
	if of.kernel != nil {
		return
	}
	if k, err := box.newKernel(ctx, of.Cwd); err == nil {
		of.kernel = k
	}
}

// runCell runs code in a Python context.
func (box *sandbox) runCell(ctx context.Context, of *codeContext, in execution, out *lines) error {
	if of.kernel == nil {
		k, err := box.newKernel(ctx, of.Cwd)
		if err != nil {
			return err
		}
		of.kernel = k
	}
	k := of.kernel
	cell, err := json.Marshal(map[string]any{"code": in.Code, "env": in.Env})
	if err != nil {
		return err
	}
	k.Send(cell)
	left := maxPrinted
	done, interrupted, late := ctx.Done(), error(nil), (<-chan time.Time)(nil)
	for {
		select {
		case <-k.More:
			for _, text := range k.Take() {
				if left -= len(text); left < 0 && interrupted == nil {
					done, late = nil, time.After(interrupts)
					interrupted = fmt.Errorf("the code printed more than %d bytes", maxPrinted)
					_ = k.Signal(syscall.SIGINT)
				}
				if over := pass(text, out, interrupted != nil); over {
					return interrupted
				}
			}
		case <-done: // the client has gone
			done, late, interrupted = nil, time.After(interrupts), context.Cause(ctx)
			_ = k.Signal(syscall.SIGINT)
		case <-late:
			k.End()
			of.kernel = nil
			return errors.Join(interrupted, errKernel)
		case <-k.Over:
			of.kernel = nil
			return errKernel
		}
	}
}

// pass passes a kernel's message on, with the members that clients know; silent drops it. over reports that the
// code has ended.
func pass(text []byte, out *lines, silent bool) (over bool) {
	var m map[string]json.RawMessage
	var kind string
	if json.Unmarshal(text, &m) != nil || json.Unmarshal(m["type"], &kind) != nil {
		return false
	}
	if kind == "end_of_execution" {
		return true
	}
	known := fields[kind]
	if known == nil || silent {
		return false
	}
	sent := map[string]any{"type": kind}
	for _, name := range known {
		if value, ok := m[name]; ok {
			sent[name] = value
		}
	}
	out.message(sent)
	return false
}
