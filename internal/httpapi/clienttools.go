package httpapi

import (
	"net/http"

	"github.com/unitask/unitask/internal/clienttools"
)

// callsOf returns the open calls of the run that a request names.
func (s *Server) callsOf(c *call) (*clienttools.Calls, error) {
	rec, err := s.record(c)
	if err != nil {
		return nil, err
	}
	if p := s.progresses.find(rec.ID, c.caller.Name); p != nil {
		return &p.calls, nil
	}
	return &clienttools.Calls{}, nil
}

func (s *Server) listToolCalls(c *call) (*answer, error) {
	calls, err := s.callsOf(c)
	if err != nil {
		return nil, err
	}
	return &answer{Body: map[string]any{"calls": append([]*clienttools.Call{}, calls.List()...)}}, nil
}

// answerToolCall gives a waiting call its result or its error.
func (s *Server) answerToolCall(c *call) (*answer, error) {
	var in clienttools.Answer
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	calls, err := s.callsOf(c)
	if err != nil {
		return nil, err
	}
	if !calls.Answer(c.text("call"), in) {
		return nil, &Problem{Status: http.StatusConflict, Code: "call.none",
			Detail: "no call " + quoted(c.text("call")) + " waits: it was answered, its time was over, or the run has ended",
			Remedy: "GET /v1/runs/{id}/calls lists what waits for an answer"}
	}
	return &answer{Status: http.StatusNoContent}, nil
}
