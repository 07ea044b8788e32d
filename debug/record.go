package debug

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// recording is a session that is being recorded as a script (Script). It has the successful commands, each after a wait
// for what the user has seen by then.
type recording struct {
	file io.WriteCloser
	left int
}

// Limits of a recording.
const (
	maxRecording = 1 << 20 // bytes
	maxRecorded  = 200     // bytes of a line to wait for
	// recordedWait is the time limit of the waits: a replay may run on a slower host.
	recordedWait = time.Minute
)

// unrecorded are the verbs that do not affect the machine.
var unrecorded = []string{"help", "quit", "record"}

// StartRecording starts recording the session into a new file.
func (c *Console) StartRecording(name string) error {
	if c.Record == nil {
		return errors.New("this console can write no files")
	}
	file, err := c.Record(name)
	if err != nil {
		return err
	}
	c.stopRecording()
	c.script = &recording{file: file, left: maxRecording}
	c.script.line("# A session that was recorded: unitask debug script runs it, with the flags that it had.")
	return nil
}

func (c *Console) stopRecording() {
	if c.script != nil {
		c.script.file.Close()
		c.script = nil
	}
}

func (c *Console) record(_ context.Context, args []string) (any, error) {
	switch len(args) {
	case 0:
		c.stopRecording()
		return "", nil
	case 1:
		return "", c.StartRecording(args[0])
	}
	return nil, errors.New("record [FILE]")
}

// line writes one line, or reports once that there is no room.
func (r *recording) line(text string) {
	if r.left -= len(text) + 1; r.left < 0 {
		if r.left+len(text)+1 >= 0 {
			fmt.Fprintln(r.file, "# The session was longer than a recording may be.")
		}
		r.left = -len(text) - 2
		return
	}
	fmt.Fprintln(r.file, text)
}

// recorded runs a line and records it.
func (c *Console) recorded(ctx context.Context, line string) (any, error) {
	line = strings.TrimSpace(line)
	words, _ := split(line)
	if len(words) == 0 || slices.Contains(unrecorded, words[0]) || strings.ContainsAny(line, "\r\n") {
		return c.do(ctx, line)
	}
	r := c.script
	if words[0] != "wait" {
		for _, wait := range c.seen(ctx) {
			r.line(wait)
		}
	}
	result, err := c.do(ctx, line)
	if err != nil {
		r.line("# " + line + ": " + clip(strings.ReplaceAll(err.Error(), "\n", " "), maxRecorded))
		return result, err
	}
	r.line(line)
	return result, nil
}

// seen returns waits for what has arrived since the last command. The text counts as consumed, as with a script's
// wait.
func (c *Console) seen(ctx context.Context) (waits []string) {
	if c.watchedStop() {
		if running, err := c.running(ctx); err == nil && !running {
			waits = append(waits, fmt.Sprintf("wait stopped %s", recordedWait))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, source := range []string{"stdout", "stderr"} { // serial has times in its lines
		w := c.streams[source]
		if w == nil {
			continue
		}
		end := strings.LastIndexByte(w.text, '\n')
		if end < 0 {
			continue
		}
		last := w.text[:end]
		last = strings.TrimRight(last[strings.LastIndexByte(last, '\n')+1:], "\r")
		w.text = w.text[end+1:]
		if last = cutBytes(last, maxRecorded); strings.TrimSpace(last) != "" {
			waits = append(waits, fmt.Sprintf("wait %s %s %s", source, strconv.Quote(last), recordedWait))
		}
	}
	if c.ended != "" {
		waits = append(waits, fmt.Sprintf("wait end %s", recordedWait))
	}
	return waits
}

// watchedStop reports whether QEMU has sent a stop event, and consumes it.
func (c *Console) watchedStop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.events, "STOP")
	c.events = c.events[i+1:]
	return i >= 0
}

// cutBytes cuts a text to at most n bytes of whole characters.
func cutBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
