package session

import (
	"maps"
	"slices"
	"sync"

	"github.com/unitask/unitask/guest/supervisor"
)

// steps is the state that a session's steps share. mu guards running, dropped and lost.
type steps struct {
	turn    chan struct{} // held by the running step
	waiting chan struct{} // one element per waiting step

	mu      sync.Mutex
	running map[string]*supervisor.Interpreter // by language
	dropped map[string]string                  // by language: why the interpreter is a new one, until reported
	lost    string                             // what the session lost, until reported
}

func newSteps() steps {
	return steps{turn: make(chan struct{}, 1), waiting: make(chan struct{}, MaxWaitingSteps+1),
		running: map[string]*supervisor.Interpreter{}, dropped: map[string]string{}}
}

// find returns the interpreter of a language, nil if there is none.
func (t *steps) find(language string) *supervisor.Interpreter {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[language]
}

// add registers interpreters.
func (t *steps) add(list ...*supervisor.Interpreter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, in := range list {
		t.running[in.Language] = in
	}
}

// forget removes the interpreter of a language.
func (t *steps) forget(language string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, language)
}

// interpreters returns all interpreters.
func (t *steps) interpreters() []*supervisor.Interpreter {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.running))
}

// drop notes why the interpreter of a language is a new one.
func (t *steps) drop(language, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropped[language] = why
}

// anyDropped reports whether a language has a new interpreter for a reason that was not reported yet.
func (t *steps) anyDropped() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.dropped) > 0
}

// droppedReason returns, once, why the previous interpreter is gone.
func (t *steps) droppedReason(language string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	why := t.dropped[language]
	delete(t.dropped, language)
	return why
}

// lose notes what the session lost.
func (t *steps) lose(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = what
}

// toldLost returns, once, what the session lost.
func (t *steps) toldLost() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lost := t.lost
	t.lost = ""
	return lost
}
