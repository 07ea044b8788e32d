package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"

	layout "github.com/unitask/unitask/internal/home"
)

// entryLines reads lines: with a prompt and a history from a terminal, otherwise as they are.
type entryLines struct {
	typed bool
	read  func(prompt string) (string, error)
	leave func() // may be called while read waits
}

// next reads a line. SIGTERM ends the wait, and Ctrl-C does if no person types. A person's Ctrl-C arrives as a key; as
// a signal it was meant for the code and came too late.
func (in entryLines) next(prompt string, signals <-chan os.Signal) (line string, err error) {
	read := make(chan struct{})
	var got string
	var failed error
	go func() {
		defer close(read)
		got, failed = in.read(prompt)
	}()
	for {
		select {
		case <-read:
			return got, failed
		case s := <-signals:
			if s != os.Interrupt || !in.typed {
				return "", errStopped
			}
		}
	}
}

func (a *app) entryLines() (entryLines, error) {
	in, ok := a.std.Stdin.(*os.File)
	if !ok || !isTerminal(in) || !isTerminal(a.std.Stdout) {
		scanner := bufio.NewScanner(a.std.Stdin)
		scanner.Buffer(nil, maxEntry)
		return entryLines{leave: func() {}, read: func(string) (string, error) {
			if scanner.Scan() {
				return scanner.Text(), nil
			}
			if errors.Is(scanner.Err(), bufio.ErrTooLong) {
				return "", errLongEntry
			}
			if err := scanner.Err(); err != nil {
				return "", usage(fmt.Errorf("read standard input: %w", err))
			}
			return "", io.EOF
		}}, nil
	}
	home, err := a.homeFolder()
	if err != nil {
		return entryLines{}, err
	}
	fd := int(in.Fd())
	usual, err := term.GetState(fd)
	if err != nil {
		return entryLines{}, err
	}
	history := openHistory(layout.Dir(home).ReplHistory())
	var mu sync.Mutex // guards the terminal's state: a read may still run when the terminal is left
	left := false
	leave := func() {
		mu.Lock()
		defer mu.Unlock()
		left = true
		_ = term.Restore(fd, usual)
		history.close()
	}
	raw := func() (back func(), err error) {
		mu.Lock()
		defer mu.Unlock()
		if left {
			return nil, errStopped
		}
		was, err := term.MakeRaw(fd) // not while code runs: there, Ctrl-C is a signal
		return func() {
			mu.Lock()
			defer mu.Unlock()
			if !left {
				_ = term.Restore(fd, was)
			}
		}, err
	}
	keys := &lineKeys{from: bufio.NewReader(in)}
	editor := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys, a.std.Stdout}, "")
	editor.History = history
	return entryLines{typed: true, leave: leave, read: func(prompt string) (string, error) {
		back, err := raw()
		if err != nil {
			return "", err
		}
		defer back()
		size := sizeOf(in)
		_ = editor.SetSize(int(size.Columns), int(size.Rows))
		editor.SetPrompt(prompt)
		keys.dropped = false
		line, err := editor.ReadLine()
		switch {
		case errors.Is(err, io.EOF):
			_, _ = io.WriteString(a.std.Stdout, "\r\n")
		case errors.Is(err, term.ErrPasteIndicator):
			err = nil
		}
		if err == nil && keys.dropped {
			err = errDropped
		}
		return line, err
	}}, nil
}

// errDropped means that Ctrl-C dropped the typed text.
var errDropped = errors.New("dropped")

// lineKeys translates Ctrl-C into keys that clear and end a line. It also completes input for which the editor would
// wait forever: invalid UTF-8, and a key's sequence without an end.
type lineKeys struct {
	from     *bufio.Reader
	dropped  bool // since the current read began
	sequence int  // characters of an incomplete sequence
	left     []byte
}

const (
	endOfKey = "~"                            // ends every sequence
	dropKeys = "\x1b[201~\x1b[201~\x01\x0b\r" // end of a sequence, end of a paste, Ctrl-A, Ctrl-K
	// maxKey bounds a key's sequence, in characters.
	maxKey = 32
)

func (k *lineKeys) Read(p []byte) (int, error) {
	if len(k.left) == 0 {
		r, _, err := k.from.ReadRune()
		if err != nil {
			return 0, err
		}
		k.key(r)
	}
	n := copy(p, k.left)
	k.left = k.left[n:]
	return n, nil
}

// key processes a key, or a part of its sequence.
func (k *lineKeys) key(r rune) {
	switch {
	case r == ctrlC:
		k.dropped, k.sequence, k.left = true, 0, []byte(dropKeys)
		_, _ = k.from.Discard(k.from.Buffered()) // text typed after it is dropped, too
		return
	case r == utf8.RuneError:
		r = '?'
	}
	inside := k.sequence == 1 && r == '[' || r >= ' ' && r < '@' && k.sequence < maxKey
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '~'
	switch {
	case k.sequence == 0:
	case letter:
		k.sequence = 0
	case inside:
		k.sequence++
	default:
		k.left, k.sequence = []byte(endOfKey), 0
	}
	if r == escape {
		k.sequence = 1
	}
	k.left = utf8.AppendRune(k.left, r)
}

const escape = 0x1b
