package mcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// errorKey is the key of a failed call's error for programs, under _meta: clients check structuredContent against
// a tool's output schema. Models read the text.
const errorKey = "unitask/error"

// ToolError is an error of a call in the form for programs.
type ToolError struct {
	Code         string `json:"code"`
	Message      string `json:"message"`
	Remedy       string `json:"remedy,omitempty"` // what to do
	Retryable    bool   `json:"retryable"`        // the same call may succeed later
	RetryAfterMS int64  `json:"retryAfterMs,omitempty"`
}

// errorKinds lists the codes; the first match applies.
var errorKinds = []struct {
	code, remedy string
	retry        time.Duration // 0 if a retry does not help
	is           func(error) bool
}{
	{"usage", "send it as the message says", 0, as[*policy.FieldError]},
	{"busy", "", time.Second, as[*unitask.BusyError]},
	{"busy", "", time.Second, as[*LimitError]},
	{"session.gone", "run_code with session new starts one, session with op list names yours", 0,
		func(err error) bool { return errors.Is(err, errNoSession) || as[*unitask.SessionError](err) }},
	{"run.gone", "list_runs names yours", 0, func(err error) bool {
		return errors.Is(err, record.ErrNotFound) ||
			errors.Is(err, errNoRun)
	}},
	{"jail", "this host can't confine QEMU as required: its owner's unitask doctor says how to fix it", 0,
		as[*unitask.JailError]},
	{"lost", "look whether it has had effects before it is run again", 0, as[*unitask.LostError]},
	{"guest", "the machine died: other code, or more memoryMb", 0, as[*unitask.GuestError]},
	{"cancelled", "", 0, func(err error) bool { return errors.Is(err, context.Canceled) }},
	{"closing", "the server ends: call the next one", 10 * time.Second,
		func(err error) bool { return errors.Is(err, unitask.ErrClosed) }},
	{"host", "the host failed: its owner's unitask doctor says why", 0, ofHost},
	{"file", "list shows what is there", 0, as[syscall.Errno]}, // the machine's, without a path of the host
	{"usage", "", 0, func(error) bool { return true }},
}

func as[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}

// ofHost reports whether the host failed: its own full disk does not concern the machine's files.
func ofHost(err error) bool {
	return as[*unitask.HostError](err) || as[*fs.PathError](err) || as[*os.LinkError](err) || as[*os.SyscallError](err)
}

// typed converts an error for programs.
func typed(err error) *ToolError {
	e := &ToolError{Message: err.Error()}
	for _, kind := range errorKinds {
		if kind.is(err) {
			e.Code, e.Remedy, e.Retryable, e.RetryAfterMS = kind.code, kind.remedy, kind.retry > 0, kind.retry.Milliseconds()
			break
		}
	}
	var busy *unitask.BusyError
	if errors.As(err, &busy) {
		e.RetryAfterMS = busy.After.Milliseconds()
	}
	if full := new(LimitError); errors.As(err, &full) && full.After > 0 {
		e.RetryAfterMS = full.After.Milliseconds()
	}
	if e.Retryable {
		e.Remedy = fmt.Sprintf("make the same call again after %d ms", e.RetryAfterMS)
	}
	return e
}

// typeErrors adds the error for programs to the results of failed calls.
func typeErrors(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		call, ok := res.(*sdk.CallToolResult)
		if !ok || err != nil || !call.IsError {
			return res, err
		}
		failed := call.GetError()
		if text, ok := first(call); failed == nil && ok && strings.HasPrefix(text, `validating "arguments"`) {
			failed = errors.New(text)
		}
		if failed == nil { // the code's own failure, which is a result
			return res, err
		}
		if call.Meta == nil {
			call.Meta = sdk.Meta{}
		}
		call.Meta[errorKey] = typed(failed)
		return res, nil
	}
}

// first returns the text of a result.
func first(call *sdk.CallToolResult) (string, bool) {
	if len(call.Content) == 0 {
		return "", false
	}
	text, ok := call.Content[0].(*sdk.TextContent)
	if !ok {
		return "", false
	}
	return text.Text, true
}
