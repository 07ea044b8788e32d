package httpapi

import (
	"net/http"
	"slices"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

func (s *Server) listQuestions(c *call) (*answer, error) {
	list, err := s.shared.Questions(c.r.Context(), c.caller)
	if err != nil {
		return nil, err
	}
	return &answer{Body: map[string]any{"questions": append([]unitask.Question{}, list...)}}, nil
}

// answerQuestion passes a caller's verdict on to its run. A caller may not allow what its ceiling asks about: the
// server's owner answers that.
func (s *Server) answerQuestion(c *call) (*answer, error) {
	var in struct {
		Host    string          `json:"host"`
		Request string          `json:"request"`
		Verdict unitask.Verdict `json:"verdict"`
	}
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	rec, err := s.record(c)
	if err != nil {
		return nil, err
	}
	if in.Verdict != unitask.Deny && !freelyAllows(c.caller.Ceiling, in.Host) {
		return nil, &Problem{Status: http.StatusForbidden, Code: "approval.forbidden",
			Detail: "the ceiling does not allow " + quoted(in.Host) + " without a question to the server's owner",
			Remedy: "the owner answers with unitask approve; you may answer deny"}
	}
	if err := s.rt.Approvals().Approve(c.r.Context(), rec.ID, in.Host, in.Request, in.Verdict); err != nil {
		return nil, &Problem{Status: http.StatusConflict, Code: "approval.none",
			Detail: s.shared.Hide(c.caller, err).Error(), Remedy: "GET /v1/approvals lists what waits for an answer"}
	}
	return &answer{Status: http.StatusNoContent}, nil
}

// freelyAllows reports whether a ceiling allows HOST:PORT without a question.
func freelyAllows(ceiling *policy.Ceiling, host string) bool {
	granted, denials, err := policy.Resolve(policy.Request{AllowNet: []string{host}}, ceiling)
	denied := slices.ContainsFunc(denials, func(d policy.Denial) bool { return d.Field == "allowNet" })
	return err == nil && !denied && len(granted.AllowNet) == 1 && len(granted.Ask) == 0
}
