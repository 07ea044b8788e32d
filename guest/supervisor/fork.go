package supervisor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// State is a client's knowledge of its program, read while the program holds its output: a client in another
// process continues from it (Restore).
type State struct {
	Next         uint32             `json:"next"` // the number of the last command
	Commands     []CommandState     `json:"commands,omitempty"`
	Interpreters []InterpreterState `json:"interpreters,omitempty"`
	MayRoot      bool               `json:"mayRoot,omitempty"` // see Client
}

// CommandState describes a running command.
type CommandState struct {
	ID        uint32 `json:"id"`
	Name      string `json:"name"`                // the program's
	Forwarded bool   `json:"forwarded,omitempty"` // it is a forwarded connection, or a watch
}

// InterpreterState describes an interpreter, which is one of the commands.
type InterpreterState struct {
	ID       uint32    `json:"id"`
	Language string    `json:"language"`
	Kept     [2][]byte `json:"kept"` // its output since its last step, for each stream
	Lost     [2]int64  `json:"lost"` // bytes of that output which were dropped
}

// State returns the client's state, with the interpreters of a list.
func (c *Client) State(list []*Interpreter) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := State{Next: c.next, MayRoot: c.MayRoot}
	for _, id := range slices.Sorted(maps.Keys(c.commands)) {
		cmd := c.commands[id]
		st.Commands = append(st.Commands, CommandState{id, cmd.exec.Args[0], cmd.exec.builtin && cmd.exec.Use != nil})
		if at := slices.IndexFunc(list, func(in *Interpreter) bool { return in.cmd == cmd }); at >= 0 {
			in := InterpreterState{ID: id, Language: list[at].Language}
			for i := range in.Kept {
				in.Kept[i], in.Lost[i] = list[at].out[i].waiting()
			}
			st.Interpreters = append(st.Interpreters, in)
		}
	}
	return st
}

// Restore returns a client for a machine that continues from a state, with the state's interpreters. The other
// commands continue there, and their output is lost; forwarded connections and watches end. Continue connects the
// client with the program.
func Restore(st State) (*Client, []*Interpreter) {
	c := New(nil)
	c.next, c.MayRoot = st.Next, st.MayRoot
	var list []*Interpreter
	for _, known := range st.Commands {
		if known.Forwarded {
			c.cut = append(c.cut, known.ID)
			continue
		}
		cmd := &Command{c: c, id: known.ID, exec: Exec{Args: []string{known.Name}}, done: make(chan struct{})}
		for i := range cmd.taken {
			cmd.taken[i] = make(chan struct{}, 1)
		}
		c.commands[known.ID] = cmd
		at := slices.IndexFunc(st.Interpreters, func(in InterpreterState) bool { return in.ID == known.ID })
		if at < 0 {
			continue
		}
		in := &Interpreter{Language: st.Interpreters[at].Language, cmd: cmd, replies: make(chan reply, 1)}
		for i := range in.out {
			in.out[i].kept, in.out[i].lost = bytes.Clone(st.Interpreters[at].Kept[i]), st.Interpreters[at].Lost[i]
		}
		cmd.exec.Stdout, cmd.exec.Stderr, cmd.exec.reply = &in.out[0], &in.out[1], &replies{to: in.replies}
		list = append(list, in)
	}
	return c, list
}

// renewing is sent instead of a step's time limit: a seed follows.
const renewing = "fork"

// RenewPatience bounds how long an interpreter may take to reseed.
const RenewPatience = 10 * time.Second

// Renew gives the interpreter of a fork new random numbers: the generators in its process are reseeded. An
// interpreter that does not answer is killed, because it would use the same numbers as the others.
func (in *Interpreter) Renew(ctx context.Context) error {
	seed := make([]byte, contract.EntropySize)
	if _, err := rand.Read(seed); err != nil {
		return err
	}
	timed, cancel := context.WithTimeoutCause(ctx, RenewPatience,
		errors.New("an interpreter does not renew its random numbers"))
	defer cancel()
	step, err := in.run(timed, renewing, hex.EncodeToString(seed), nil, nil) // earlier output belongs to the next step
	if err == nil && !step.Gone && step.Code != 0 {
		err = fmt.Errorf("an interpreter can't renew its random numbers: %.200s", step.Value)
	}
	if err != nil || step.Gone {
		in.kill()
	}
	return err
}
