package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/unitask/unitask/debug"
	layout "github.com/unitask/unitask/internal/home"
)

// prompt is the prompt of a console.
const prompt = "(unitask) "

// converse reads commands from a person until quit or the end of input.
func (a *app) converse(ctx context.Context, c *debug.Console) error {
	read, leave, err := a.lineReader(c)
	if err != nil {
		return err
	}
	defer leave()
	for ctx.Err() == nil {
		line, err := read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		result, err := c.Do(ctx, line)
		if errors.Is(err, debug.ErrQuit) {
			return nil
		}
		a.answer(result, err)
	}
	return ctx.Err()
}

// answer prints a command's result.
func (a *app) answer(result any, err error) {
	text := ""
	switch r := result.(type) {
	case string:
		text = r
	case json.RawMessage:
		var pretty bytes.Buffer
		if json.Indent(&pretty, r, "", "  ") == nil && string(r) != "{}" {
			text = pretty.String()
		}
	}
	a.showing.Lock()
	defer a.showing.Unlock()
	if err != nil {
		fmt.Fprintln(a.console(), "error:", visibleLine(err.Error()))
	} else if text != "" {
		for line := range strings.Lines(text) {
			fmt.Fprintln(a.console(), visibleLine(strings.TrimRight(line, "\n")))
		}
	}
}

// console returns the writer for the console's text: the terminal's line editor, if there is one.
func (a *app) console() io.Writer {
	if a.editor != nil {
		return a.editor
	}
	return a.std.Stdout
}

// show prints events beside the commands. In a script, whose stdout is JSON, it prints to stderr.
func (a *app) show() func(source, text string) {
	return func(source, text string) {
		a.showing.Lock()
		defer a.showing.Unlock()
		var w io.Writer = a.std.Stderr
		if a.editor != nil {
			w = a.editor
		}
		fmt.Fprintf(w, "%s| %s\n", source, visibleLine(text))
	}
}

// lineReader reads lines: on a terminal with an editor, completion and history, otherwise without.
func (a *app) lineReader(c *debug.Console) (read func() (string, error), leave func(), err error) {
	in, ok := a.std.Stdin.(*os.File)
	if !ok || !isTerminal(in) || !isTerminal(a.std.Stdout) {
		lines := bufio.NewScanner(a.std.Stdin)
		return func() (string, error) {
			if lines.Scan() {
				return lines.Text(), nil
			}
			if lines.Err() != nil {
				return "", lines.Err()
			}
			return "", io.EOF
		}, func() {}, nil
	}
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, nil, err
	}
	home, err := a.homeFolder()
	if err != nil {
		return nil, nil, err
	}
	typed := openHistory(layout.Dir(home).DebugHistory())
	editor := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{in, a.std.Stdout}, prompt)
	editor.History = typed
	if width, height, err := term.GetSize(int(in.Fd())); err == nil && width > 0 {
		_ = editor.SetSize(width, height)
	}
	editor.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		if key != '\t' {
			return "", 0, false
		}
		completed, others := complete(c, line[:pos])
		if len(others) > 1 && completed == line[:pos] {
			go fmt.Fprintln(editor, strings.Join(others, "  ")) // the editor is locked now
		}
		return completed + line[pos:], len(completed), true
	}
	a.showing.Lock()
	a.editor = editor
	a.showing.Unlock()
	return editor.ReadLine, func() {
		a.showing.Lock()
		a.editor = nil
		a.showing.Unlock()
		_ = term.Restore(int(in.Fd()), old)
		typed.close()
	}, nil
}

// complete extends a line as far as all candidates agree.
func complete(c *debug.Console, line string) (string, []string) {
	candidates := c.Complete(line)
	if len(candidates) == 0 {
		return line, nil
	}
	common := candidates[0]
	for _, other := range candidates[1:] {
		for !strings.HasPrefix(other, common) {
			common = common[:len(common)-1]
		}
	}
	begin := line[:strings.LastIndexAny(line, " ")+1]
	if len(candidates) == 1 && !strings.HasSuffix(common, "=") {
		common += " "
	}
	if len(common) < len(line)-len(begin) {
		return line, candidates
	}
	return begin + common, candidates
}

// lineHistory stores a console's lines in a file.
type lineHistory struct {
	lines []string // the oldest first
	file  *os.File
}

// maxHistory bounds the stored lines.
const maxHistory = 1000

func openHistory(name string) *lineHistory {
	h := &lineHistory{}
	if text, err := os.ReadFile(name); err == nil && len(text) < 1<<20 {
		for line := range strings.Lines(string(text)) {
			h.lines = append(h.lines, strings.TrimRight(line, "\n"))
		}
		if len(h.lines) > maxHistory {
			h.lines = h.lines[len(h.lines)-maxHistory:]
		}
	}
	// O_APPEND: another console may write, too. Without the file, none is stored.
	h.file, _ = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	for _, line := range h.lines {
		h.write(line)
	}
	return h
}

func (h *lineHistory) write(line string) {
	if h.file != nil {
		fmt.Fprintln(h.file, line)
	}
}

// Add, Len and At implement term.History.
func (h *lineHistory) Add(line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	h.lines = append(h.lines, line)
	h.write(line)
}

func (h *lineHistory) Len() int { return len(h.lines) }

func (h *lineHistory) At(i int) string { return h.lines[len(h.lines)-1-i] }

func (h *lineHistory) close() {
	if h.file != nil {
		h.file.Close()
	}
}
