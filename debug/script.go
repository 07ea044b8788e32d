package debug

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/itchyny/gojq"
)

// Line is a script's report on one of its lines, as a line of JSON.
type Line struct {
	Number  int    `json:"line"`
	Command string `json:"command"`
	Result  any    `json:"result,omitempty"`
	Error   string `json:"error,omitempty"`
}

// ErrScript means that a line of a script failed, as already reported.
var ErrScript = errors.New("the script failed")

// maxScript bounds a script's line.
const maxScript = 64 << 10

// Script runs a script: one command per line, # begins a comment. In addition to the console's commands there is
//
//	assert EXPRESSION
//
// a jq expression over the previous line's result, which must be true. The script ends at the first line that fails,
// with ErrScript. tell is called after each line.
func (c *Console) Script(ctx context.Context, text io.Reader, tell func(Line)) error {
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxScript)
	var last any
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		said := Line{Number: n, Command: line}
		var err error
		if expression, ok := strings.CutPrefix(line, "assert "); ok {
			err = assert(ctx, expression, last)
		} else {
			var result any
			result, err = c.Do(ctx, line)
			if err == nil {
				last = plain(result)
				said.Result = last
			}
		}
		if errors.Is(err, ErrQuit) {
			tell(said)
			return nil
		}
		if err != nil {
			said.Error = err.Error()
			tell(said)
			return fmt.Errorf("line %d: %w: %w", n, ErrScript, err)
		}
		tell(said)
	}
	return lines.Err()
}

// plain converts a result for jq.
func plain(result any) any {
	raw, ok := result.(json.RawMessage)
	if !ok {
		if result == "" {
			return nil
		}
		return result
	}
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return nil
	}
	return v
}

// assert evaluates a jq expression, whose result must be true.
func assert(ctx context.Context, expression string, value any) error {
	query, err := gojq.Parse(expression)
	if err != nil {
		return fmt.Errorf("assert %s: %w", expression, err)
	}
	iter := query.RunWithContext(ctx, value)
	result, ok := iter.Next()
	if !ok {
		return fmt.Errorf("assert %s: no result", expression)
	}
	if err, isErr := result.(error); isErr {
		return fmt.Errorf("assert %s: %w", expression, err)
	}
	if result != true {
		text, _ := json.Marshal(value)
		return fmt.Errorf("assert %s: %v, of %s", expression, result, clip(string(text), 400))
	}
	return nil
}
