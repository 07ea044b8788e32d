package policy

import (
	"fmt"
	"time"
)

// SessionLimits bound a session, and all sessions of a process.
type SessionLimits struct {
	Sessions       int           `json:"sessions"`       // open at once; -1 means none
	CallerSessions int           `json:"callerSessions"` // of one caller; -1 means none
	Life           time.Duration `json:"sessionLifeMs"`
	Idle           time.Duration `json:"sessionIdleMs"`  // idle time before a pause
	ForwardedPorts int           `json:"forwardedPorts"` // of a session at once; -1 means none
	// BackgroundCommands bounds the background commands of a session at once; -1 means none
	BackgroundCommands int   `json:"backgroundCommands"`
	PausedBytes        int64 `json:"pausedBytes"` // memory of paused sessions; -1 means none
}

// limit is a kind for fields of SessionLimits.
type limit interface {
	pick(f *Field, asked, granted any) error
	cut(f *Field, c *Ceiling, asked, granted any, deny deny)
}

// Sessions returns a session's limits under this ceiling (nil means none). A limit of 0 in the request is
// replaced with its value in usual, or its default. The denials list the cuts.
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
			denials = append(denials, Denial{Field: f.name(), Requested: fmt.Sprint(requested), Reason: reason,
				Rule: c.rule(f.ceiling()), Line: c.ruleLine(f.ceiling()), Key: c.prefix + f.ceiling()})
		})
	}
	return denials
}
