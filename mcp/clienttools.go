package mcp

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/unitask/unitask/internal/clienttools"
	"github.com/unitask/unitask/internal/exact"
)

// Functions of the client, which the code of a run in the background calls. wait_command returns the calls that wait,
// and takes their answers.

// maxCallBytes bounds the arguments of the calls in one answer; later calls wait for the next one. At least one call is
// there.
const maxCallBytes = 256 << 10

// callAnswer answers a call.
type callAnswer struct {
	Call   string          `json:"call"`
	Result json.RawMessage `json:"result"`
	Error  *string         `json:"error"`
}

func (a *callAnswer) UnmarshalJSON(data []byte) error {
	type plain callAnswer
	if err := exact.Members(data, a); err != nil {
		return fmt.Errorf("answers: %w: an answer has call, and result or error", err)
	}
	return json.Unmarshal(data, (*plain)(a))
}

// answerCalls answers waiting calls of a run.
func (r *round) answerCalls(answers []callAnswer) error {
	var late []string
	for _, a := range answers {
		if !r.calls.Answer(a.Call, clienttools.Answer{Result: a.Result, Error: a.Error}) {
			late = append(late, fmt.Sprintf("%.40q", a.Call))
		}
	}
	if late != nil {
		return fmt.Errorf("answers: no call %s waits: it was answered, its time was over, or the run has ended; "+
			"the other answers count", strings.Join(late, ", "))
	}
	return nil
}

// waitingCalls returns the calls that wait for an answer, the oldest first.
func (r *round) waitingCalls() (list []*clienttools.Call) {
	size := 0
	for _, call := range r.calls.List() {
		if size += len(call.Arguments); len(list) > 0 && size > maxCallBytes {
			break
		}
		list = append(list, call)
	}
	return list
}

// callsText tells a model about calls.
func callsText(calls []*clienttools.Call) string {
	var text strings.Builder
	for _, call := range calls {
		fmt.Fprintf(&text, "\ncall %s of your function %s.%s waits for an element of answers: %s", call.Call, call.Server,
			call.Tool, call.Arguments)
	}
	return text.String()
}
