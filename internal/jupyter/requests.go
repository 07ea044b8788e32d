package jupyter

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// cell is the content of an execute_request.
type cell struct {
	Code         string            `json:"code"`
	Silent       bool              `json:"silent"`
	StoreHistory *bool             `json:"store_history"`
	Expressions  map[string]string `json:"user_expressions"`
	AllowStdin   *bool             `json:"allow_stdin"`
	StopOnError  *bool             `json:"stop_on_error"`
}

func isTrue(value *bool) bool { return value == nil || *value }

// execute runs a cell.
func (s *server) execute(m *message) error {
	var in cell
	err := json.Unmarshal(m.content, &in)
	if err == nil && len(in.Code) > maxCode {
		err = fmt.Errorf("the cell has over %d bytes", maxCode)
	}
	if err != nil {
		s.reply(s.shell, m, failure("ValueError", err.Error()))
		return nil
	}
	store := isTrue(in.StoreHistory) && !in.Silent
	if store || s.count == 0 {
		s.count++
	}
	count := s.count
	if !in.Silent {
		s.publish(m, "execute_input", map[string]any{"code": in.Code, "execution_count": count}, false)
	}
	lost, failed := false, false
	show := func(o output) error {
		kind, content := s.shown(o, count)
		if kind == "" || in.Silent && (kind == "execute_result" || kind == "display_data") {
			return nil
		}
		mayDrop := kind != "error" || failed // a cell fails once: more are a flood
		failed = failed || kind == "error"
		if s.publish(m, kind, content, mayDrop) && !lost {
			lost = true
			s.note(m, "output is missing: it is too large, or a client reads too slowly")
		}
		return nil
	}
	if in.Expressions == nil {
		in.Expressions = map[string]string{}
	}
	var end output
	fails := s.ready() // then each cell says why
	if err = fails; err == nil {
		end, err = s.run(operation{request: m, show: show, line: map[string]any{"op": "execute", "code": in.Code,
			"count": count, "store": store, "silent": in.Silent, "stdin": isTrue(in.AllowStdin),
			"expressions": in.Expressions}})
	}
	if s.ctx.Err() != nil {
		return nil
	}
	content := ok("", nil)
	content["user_expressions"], content["payload"] = s.expressions(end.Expressions), pages(end.Pages)
	if err != nil {
		content = failure("KernelError", err.Error())
		s.publish(m, "error", content, false)
	} else if end.Error != "" {
		content = failure(cut(end.Error, maxText), "")
	}
	content["execution_count"] = count
	if content["status"] == "error" && isTrue(in.StopOnError) {
		s.abort()
	}
	s.reply(s.shell, m, content)
	if fails != nil {
		return nil
	}
	return err
}

// abort has the cells that wait not run, because one before them failed.
func (s *server) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.requests {
		m.aborted = m.kind == "execute_request"
	}
}

// shown returns the message for clients of what Python shows; kind "" means none.
func (s *server) shown(o output, count int) (kind string, content map[string]any) {
	switch o.Type {
	case "stdout", "stderr":
		return "stream", map[string]any{"name": o.Type, "text": o.Text}
	case "display", "result":
		content = map[string]any{"data": s.forms(o.Data), "metadata": s.metadata(o.Metadata)}
		if o.Display != "" {
			content["transient"] = map[string]string{"display_id": o.Display}
		}
		switch {
		case o.Type == "result":
			content["execution_count"] = count
			return "execute_result", content
		case o.Update:
			return "update_display_data", content
		}
		return "display_data", content
	case "clear":
		return "clear_output", map[string]any{"wait": o.Wait}
	case "error":
		return "error", map[string]any{"ename": o.Name, "evalue": o.Value, "traceback": append([]string{}, o.Traceback...)}
	}
	return "", nil
}

// expressions returns the values of user expressions.
func (s *server) expressions(all map[string]expression) map[string]any {
	list := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if e := all[name]; e.Status == "ok" {
			list[name] = map[string]any{"status": "ok", "data": s.forms(e.Data), "metadata": map[string]any{}}
		} else {
			list[name] = failure(e.Name, e.Value)
		}
	}
	return list
}

// pages returns the texts that a client shows beside the notebook, as help has them.
func pages(texts []string) []any {
	list := []any{}
	for _, text := range texts[:min(len(texts), 10)] {
		list = append(list, map[string]any{"source": "page", "start": 0, "data": map[string]string{"text/plain": text}})
	}
	return list
}

// lookup has Python look something up for a client. A failure there is an empty answer.
func (s *server) lookup(m *message, line map[string]any) (output, error) {
	select {
	case <-s.started:
	default:
		return output{}, nil // no client waits for a machine
	}
	if s.err != nil {
		return output{}, nil
	}
	o, err := s.run(operation{request: m, line: line, limit: lookupTime})
	if s.ctx.Err() != nil {
		err = nil
	}
	return o, err
}

// position is the content of the requests that are about a place in code.
type position struct {
	Code   string `json:"code"`
	At     int    `json:"cursor_pos"`
	Detail int    `json:"detail_level"`
}

// positionOf reads such a content; ok is false, and the request answered, if it is none.
func (s *server) positionOf(m *message) (p position, ok bool) {
	err := json.Unmarshal(m.content, &p)
	if err == nil && (len(p.Code) > maxCode || p.At < 0 || p.At > len([]rune(p.Code))) {
		err = fmt.Errorf("code of at most %d bytes, and a cursor_pos within it", maxCode)
	}
	if err != nil {
		s.reply(s.shell, m, failure("ValueError", err.Error()))
	}
	return p, err == nil
}

func (s *server) complete(m *message) error {
	p, ok := s.positionOf(m)
	if !ok {
		return nil
	}
	o, err := s.lookup(m, map[string]any{"op": "complete", "code": p.Code, "cursor": p.At})
	if o.Start < 0 || o.Start > o.End || o.End > len([]rune(p.Code)) || len(o.Matches) == 0 {
		o.Start, o.End, o.Matches = p.At, p.At, []string{}
	}
	s.reply(s.shell, m, map[string]any{"status": "ok", "matches": o.Matches[:min(len(o.Matches), maxMatches)],
		"cursor_start": o.Start, "cursor_end": o.End, "metadata": map[string]any{}})
	return err
}

func (s *server) inspect(m *message) error {
	p, ok := s.positionOf(m)
	if !ok {
		return nil
	}
	o, err := s.lookup(m, map[string]any{"op": "inspect", "code": p.Code, "cursor": p.At,
		"detail": min(max(p.Detail, 0), 1)})
	data := map[string]string{}
	if o.Text != "" {
		data["text/plain"] = o.Text
	}
	s.reply(s.shell, m, map[string]any{"status": "ok", "found": o.Text != "", "data": data, "metadata": map[string]any{}})
	return err
}

func (s *server) isComplete(m *message) error {
	p, ok := s.positionOf(m)
	if !ok {
		return nil
	}
	o, err := s.lookup(m, map[string]any{"op": "is_complete", "code": p.Code})
	content := map[string]any{"status": "unknown"}
	if slices.Contains([]string{"complete", "incomplete", "invalid"}, o.State) {
		content["status"] = o.State
	}
	if o.State == "incomplete" {
		content["indent"] = cut(o.Indent, maxID)
	}
	s.reply(s.shell, m, content)
	return err
}
