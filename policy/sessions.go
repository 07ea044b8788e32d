package policy

import (
	"fmt"
	"time"
)

// SessionLimits bound sessions: one of them, and all that a process holds.
type SessionLimits struct {
	Sessions       int           `json:"sessions"`       // that live at once; -1 is none
	CallerSessions int           `json:"callerSessions"` // of one caller; -1 is none
	Life           time.Duration `json:"sessionLifeMs"`
	Idle           time.Duration `json:"sessionIdleMs"`  // after so long it is paused
	ForwardedPorts int           `json:"forwardedPorts"` // of a session at once; -1 is none
	// BackgroundCommands are those of a session at once; -1 is none
	BackgroundCommands int   `json:"backgroundCommands"`
	PausedBytes        int64 `json:"pausedBytes"` // of the memory of those that are paused; -1 is none
}

// limit is a kind that fields of SessionLimits can have.
type limit interface {
	pick(f *Field, asked, granted any) error
	cut(f *Field, c *Ceiling, asked, granted any, deny deny)
}

// Sessions are the limits of a session that asks for some, where a field that it leaves 0 has its
// value in usual, or its default, under this ceiling (nil is none). The denials say what was cut.
func (c *Ceiling) Sessions(asked, usual SessionLimits) (granted SessionLimits, denials []Denial, err error) {
	granted = usual
	for i := range Limits {
		if err := Limits[i].kind.(limit).pick(&Limits[i], &asked, &granted); err != nil {
			return SessionLimits{}, nil, err
		}
	}
	return granted, c.narrowSessions(&granted, &asked), nil
}

func (c *Ceiling) narrowSessions(granted, asked *SessionLimits) (denials []Denial) {
	if c == nil {
		return nil
	}
	denials = c.over.narrowSessions(granted, asked)
	for i := range Limits {
		f := &Limits[i]
		f.kind.(limit).cut(f, c, asked, granted, func(requested any, reason string) {
			denials = append(denials, Denial{Field: f.name(), Requested: fmt.Sprint(requested), Reason: reason, Rule: c.rule(f.ceiling()), Key: c.prefix + f.ceiling()})
		})
	}
	return denials
}
