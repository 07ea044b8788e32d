package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// Fork returns a client for a copy of the program's machine, which was taken while the program held its
// output, with the interpreters of a list as they are in the copy. The copy's other commands run on there, and
// nobody has what they print. GoOn gives the client its way to the program.
func (c *Client) Fork(list []*Interpreter) (*Client, []*Interpreter) {
	f := New(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	f.next = c.next
	var copies []*Interpreter
	for id, cmd := range c.commands {
		if cmd.exec.use != nil { // a forwarded connection stays with this one
			f.cut = append(f.cut, id)
			continue
		}
		of := &Command{c: f, id: id, exec: Exec{Args: cmd.exec.Args}, done: make(chan struct{})}
		for i := range of.taken {
			of.taken[i] = make(chan struct{}, 1)
		}
		f.commands[id] = of
		at := slices.IndexFunc(list, func(in *Interpreter) bool { return in.cmd == cmd })
		if at < 0 {
			continue
		}
		in := &Interpreter{Language: list[at].Language, cmd: of, replies: make(chan reply, 1)}
		for i := range in.out {
			in.out[i].kept = list[at].out[i].waiting()
		}
		of.exec.Stdout, of.exec.Stderr, of.exec.reply = &in.out[0], &in.out[1], &replies{to: in.replies}
		copies = append(copies, in)
	}
	return f, copies
}

// renewing is what stands where a step has its time limit: what follows is a seed.
const renewing = "fork"

// RenewPatience bounds how long an interpreter may take to renew what it keeps.
const RenewPatience = 10 * time.Second

// Renew gives the interpreter of a fork random numbers of its own: the generators that its process keeps are
// seeded anew. One that does not answer is killed, since it would go on with those of the others.
func (in *Interpreter) Renew(ctx context.Context) error {
	seed := make([]byte, contract.EntropySize)
	if _, err := rand.Read(seed); err != nil {
		return err
	}
	timed, cancel := context.WithTimeoutCause(ctx, RenewPatience, errors.New("an interpreter does not renew its random numbers"))
	defer cancel()
	step, err := in.run(timed, renewing, hex.EncodeToString(seed), io.Discard, io.Discard)
	if err == nil && !step.Gone && step.Code != 0 {
		err = fmt.Errorf("an interpreter can't renew its random numbers: %.200s", step.Value)
	}
	if err != nil || step.Gone {
		in.kill()
	}
	return err
}
