package debug

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxSteps bounds one step.
const maxSteps = 100_000

func (c *Console) step(ctx context.Context, args []string) (any, error) {
	n := 1
	if len(args) > 0 {
		var err error
		if n, err = strconv.Atoi(args[0]); err != nil || n < 1 || n > maxSteps {
			return nil, fmt.Errorf("step %s: a number of instructions from 1 to %d", args[0], maxSteps)
		}
	}
	s, err := c.remote(ctx)
	if err != nil {
		return nil, err
	}
	for range n {
		if err := s.step(ctx); err != nil {
			return nil, err
		}
	}
	return c.where(ctx)
}

// stopped returns an error if the machine runs.
func (c *Console) stopped(ctx context.Context) error {
	running, err := c.running(ctx)
	if err == nil && running {
		err = errors.New("the machine runs: `stop` it first")
	}
	return err
}

func (c *Console) running(ctx context.Context) (bool, error) {
	var status struct {
		Running bool `json:"running"`
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := c.Monitor().Do(timed, "query-status", nil, &status)
	return status.Running, err
}

func (c *Console) breakAt(ctx context.Context, args []string) (any, error) {
	return c.breakpoint(ctx, true, args)
}

func (c *Console) deleteAt(ctx context.Context, args []string) (any, error) {
	return c.breakpoint(ctx, false, args)
}

func (c *Console) breakpoint(ctx context.Context, set bool, args []string) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("which ADDRESS?")
	}
	at, err := c.Symbols.Address(args[0])
	if err != nil {
		return nil, err
	}
	s, err := c.remote(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.breakpoint(ctx, set, at); err != nil {
		return nil, err
	}
	if set {
		c.breaks = append(c.breaks, at)
	} else {
		c.breaks = slices.DeleteFunc(c.breaks, func(b uint64) bool { return b == at })
	}
	return c.name(at), nil
}

// name returns an address with its symbol.
func (c *Console) name(at uint64) string {
	if symbol := c.Symbols.At(at); symbol != "" {
		return fmt.Sprintf("%#x %s", at, symbol)
	}
	return fmt.Sprintf("%#x", at)
}

func (c *Console) mem(ctx context.Context, args []string) (any, error) {
	if len(args) != 2 {
		return nil, errors.New("mem ADDRESS LENGTH: mem 0x200000 64")
	}
	at, err := c.Symbols.Address(args[0])
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(args[1], 0, 32)
	if err != nil || n == 0 || n > maxMemory {
		return nil, fmt.Errorf("mem %s %s: a length from 1 to %d", args[0], args[1], maxMemory)
	}
	data, err := c.read(ctx, at, int(n))
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	for i := 0; i < len(data); i += 16 {
		row := data[i:min(i+16, len(data))]
		text := strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '.'
			}
			return r
		}, string(latin1(row)))
		fmt.Fprintf(&out, "%016x  %-47s  %s\n", at+uint64(i), spaced(row), text)
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

func latin1(p []byte) []rune {
	r := make([]rune, len(p))
	for i, b := range p {
		r[i] = rune(b)
	}
	return r
}

func spaced(p []byte) string {
	var parts []string
	for _, b := range p {
		parts = append(parts, hex.EncodeToString([]byte{b}))
	}
	return strings.Join(parts, " ")
}

var memoryLine = regexp.MustCompile(`^[0-9a-f]+:((?: 0x[0-9a-f]{2})+)$`)

// read reads the guest's virtual memory through the human monitor, the only way for a console that joined a
// machine.
func (c *Console) read(ctx context.Context, at uint64, n int) ([]byte, error) {
	said, err := c.human(ctx, fmt.Sprintf("x /%dxb %#x", n, at))
	if err != nil {
		return nil, err
	}
	data := make([]byte, 0, n)
	for line := range strings.Lines(said) {
		m := memoryLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			return nil, fmt.Errorf("memory at %#x: %s", at, strings.TrimSpace(line))
		}
		for _, b := range strings.Fields(m[1]) {
			v, _ := strconv.ParseUint(b, 0, 8)
			data = append(data, byte(v))
		}
	}
	if len(data) != n {
		return nil, fmt.Errorf("memory at %#x: %d bytes of %d", at, len(data), n)
	}
	return data, nil
}

// register returns one of the registers in info registers: amd64's RIP, RBP and RSP, arm64's PC, X29 and SP.
func register(said string, names ...string) (uint64, bool) {
	for _, name := range names {
		if m := regexp.MustCompile(`\b` + name + ` ?=([0-9a-f]{8,16})`).FindStringSubmatch(said); m != nil {
			v, err := strconv.ParseUint(m[1], 16, 64)
			return v, err == nil
		}
	}
	return 0, false
}

func (c *Console) where(ctx context.Context) (string, error) {
	said, err := c.human(ctx, "info registers")
	if err != nil {
		return "", err
	}
	at, ok := register(said, "RIP", "EIP", "PC")
	if !ok {
		return "", errors.New("the registers have no program counter")
	}
	c.locate(ctx, at)
	return c.name(at), nil
}

// locate adjusts the symbols to a kernel that has moved itself, if the processor is in it.
func (c *Console) locate(ctx context.Context, at uint64) {
	if memory, err := c.read(ctx, at&^(page-1), page); err == nil {
		c.Symbols.Locate(at, memory)
	}
}

// backtrace follows the frame pointers. For a kernel without frame pointers it shows the current address, and
// every possible return address on the stack, marked with ? as linux does.
func (c *Console) backtrace(ctx context.Context, _ []string) (any, error) {
	said, err := c.human(ctx, "info registers")
	if err != nil {
		return nil, err
	}
	at, ok := register(said, "RIP", "PC")
	if !ok {
		return nil, errors.New("the registers have no program counter")
	}
	c.locate(ctx, at)
	frames := []string{"#0 " + c.name(at)}
	if c.Symbols.Frameless() {
		if c.Symbols.At(at) == "" {
			return frames[0], nil
		}
		stack, _ := register(said, "RSP")
		words, err := c.read(ctx, stack, int(min(maxStack, page-stack%page))) // the next page may not exist
		for ; err == nil && len(words) >= 8 && len(frames) < maxFrames; words = words[8:] {
			if back := le64(words); c.Symbols.Returns(back) {
				frames = append(frames, "?  "+c.name(back))
			}
		}
		return strings.Join(frames, "\n"), nil
	}
	frame, _ := register(said, "RBP", "X29")
	for last := uint64(0); len(frames) < maxFrames && frame > last && frame%8 == 0; {
		pair, err := c.read(ctx, frame, 16)
		if err != nil {
			break
		}
		back := le64(pair[8:])
		if back == 0 {
			break
		}
		frames = append(frames, fmt.Sprintf("#%d %s", len(frames), c.name(back)))
		last, frame = frame, le64(pair)
	}
	return strings.Join(frames, "\n"), nil
}

func le64(p []byte) (v uint64) {
	for i := range 8 {
		v |= uint64(p[i]) << (8 * i)
	}
	return v
}
