package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// touched is the memory of the session that is paused and forked, in MiB.
const touched = 200

// held is the value of code that fills a session's memory, and of code that reads its size.
var held = strconv.Itoa(touched << 20)

// fill returns code that makes a session hold that much memory.
var fill = fmt.Sprintf("globalThis.held = Buffer.alloc(%d << 20, 1); held.length", touched)

// sessions measures machines that stay for several steps.
func (s *suite) sessions(kernel image.Kernel, only string, rounds int) (bool, error) {
	// On Nanos a session's interpreter is the template's only process. There are neither commands nor shells.
	classes := []unitask.MachineClass{{Image: "node", Kernel: kernel}}
	if kernel == image.Linux {
		classes = []unitask.MachineClass{{Image: "node", Kernel: kernel, FreshProcess: true},
			{Image: "shell", Kernel: kernel, FreshProcess: true}, {Image: "shell", Kernel: kernel}}
	}
	for _, sh := range classes {
		if _, err := s.rt.MakeTemplate(s.ctx, sh); err != nil {
			return false, err
		}
	}
	node, err := s.openSession(kernel, "js")
	if err != nil {
		return false, err
	}
	defer node.Close()
	large, err := s.openSession(kernel, "js")
	if err != nil {
		return false, err
	}
	defer large.Close()
	if err := s.step(large, "js", fill, held); err != nil {
		return false, err
	}
	rows := append([]row{
		{name: "a step in Node", target: 0.5, subject: func() error { return s.step(node, "js", "1", "1") },
			reference: func() error { return s.command([]string{s.node, s.script}) }, against: "node on the host"},
	}, s.pausedRows(kernel, large)...)
	if kernel == image.Linux {
		shell, err := s.openSession(kernel, "shell")
		if err != nil {
			return false, err
		}
		defer shell.Close()
		if err := s.step(shell, "shell", "bash -c true", ""); err != nil {
			return false, err
		}
		rows = append(rows, s.shellRows(shell)...)
	}
	ok, err := s.rows(kernel, rows, only, rounds)
	return s.pauses(kernel, large, rounds) && ok, err
}

func (s *suite) openSession(kernel image.Kernel, language string) (*unitask.Session, error) {
	return s.rt.NewSession(s.ctx, unitask.SessionRequest{Request: unitask.Request{Kernel: kernel, Language: language}})
}

// step runs a step of a session, and checks its value.
func (s *suite) step(of *unitask.Session, language, code, want string) error {
	res, err := of.Run(s.ctx, unitask.Step{Code: code, Language: language})
	if err == nil && (res.ExitCode != 0 || res.Value != want) {
		err = fmt.Errorf("%s: code %d, value %q, not %q: %s", code, res.ExitCode, res.Value, want, res.Stderr)
	}
	return err
}

// pausedRows measure pauses and forks of a session that holds much memory.
func (s *suite) pausedRows(kernel image.Kernel, large *unitask.Session) []row {
	_, whole := memoryOfQEMUs() // measured before the pause or fork: afterwards it shares untouched memory
	boot := func() error {
		return s.command([]string{s.program, "run", "--kernel", string(kernel), "--accel", "tcg", "--cold", "--code-file",
			s.script})
	}
	pause := func() error { return large.Pause(s.ctx) }
	ask := func() error { return s.step(large, "js", "held.length", held) }
	again := func() error {
		other, err := s.openSession(kernel, "js")
		if err == nil {
			err = errors.Join(s.step(other, "js", fill, held), other.Close())
		}
		return err
	}
	var forks []*unitask.Session
	leave := func() error {
		var errs []error
		for _, f := range forks {
			errs = append(errs, f.Close())
		}
		forks = nil
		return errors.Join(errs...)
	}
	fork := func() (err error) {
		if forks, err = large.Fork(s.ctx, 8); err != nil {
			return err
		}
		answers := make(chan error, len(forks))
		for _, f := range forks {
			go func() { answers <- s.step(f, "js", "held.length", held) }()
		}
		for range forks {
			err = errors.Join(err, <-answers)
		}
		return err
	}
	return []row{
		{name: fmt.Sprintf("resume to first reply, %d MiB touched", touched), target: 0.1, before: pause, subject: ask,
			reference: boot, against: "run --cold"},
		{name: "the same", target: 0.7, before: pause, subject: ask, reference: again,
			against: "a new session that does the same again"},
		{name: "fork into 8, all answered", target: 0.6, before: leave, subject: fork, reference: boot, against: "run --cold",
			after: func() bool { return s.forked(kernel, large, whole, leave) }},
	}
}

// shellRows measure commands in a machine.
func (s *suite) shellRows(shell *unitask.Session) []row {
	command := func(argv ...string) func() error { return func() error { return s.command(argv) } }
	return []row{
		{name: "a command", target: 1.5, subject: func() error {
			res, err := shell.Exec(s.ctx, unitask.Command{Args: []string{"bash", "-c", "true"}})
			if err == nil && res.ExitCode != 0 {
				err = fmt.Errorf("%s", res.Stderr)
			}
			return err
		}, reference: func() error { return s.step(shell, "shell", "bash -c true", "") },
			against: "the same bash, started by one that waits in the machine"},
		{name: "unitask shell, to its first output", target: 1.2,
			subject:   command(s.program, "shell", "--", "sh", "-c", "echo hello from a shell"),
			reference: command(s.program, "run", "--accel", "tcg", "--lang", "shell", "--code", "echo hello from a shell"),
			against:   "run --lang shell, a clone"},
	}
}

// pauses measures how long it takes until a machine is on the disk and its memory is free.
func (s *suite) pauses(kernel image.Kernel, of *unitask.Session, rounds int) bool {
	var took []time.Duration
	for range rounds {
		if err := of.Resume(s.ctx); err != nil {
			fmt.Println(err)
			return false
		}
		d, err := timed(func() error { return of.Pause(s.ctx) })
		if err != nil {
			fmt.Println(err)
			return false
		}
		took = append(took, d)
	}
	ratio := quantile(took, 50).Seconds()
	fmt.Printf("| %s: pause, until its memory is free, %d MiB touched | 1 s | %s | %s | | %.2f | 1.00 |\n", kernel,
		touched, ms(quantile(took, 50)), ms(quantile(took, 95)), ratio)
	return ratio <= 1
}

// forked measures the proportional memory of forks, compared with their unshared machine.
func (s *suite) forked(kernel image.Kernel, of *unitask.Session, whole int, leave func() error) bool {
	if err := leave(); err != nil {
		fmt.Println(err)
		return false
	}
	if whole == 0 { // only Linux reports it
		return true
	}
	before, _ := memoryOfQEMUs()
	forks, err := of.Fork(s.ctx, 8)
	if err != nil {
		fmt.Println(err)
		return false
	}
	after, _ := memoryOfQEMUs()
	for _, f := range forks {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Println(err)
		return false
	}
	each := float64(after-before) / 8
	ratio := each / float64(whole)
	fmt.Printf("| %s: proportional memory of a fork, 8 of them | its machine's | %.0f MiB | | %d MiB | %.2f | 0.10 |\n",
		kernel, each, whole, ratio)
	return ratio <= 0.1
}
