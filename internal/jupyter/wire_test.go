package jupyter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/pykernel"
	"github.com/unitask/unitask/internal/testjupyter"
	"github.com/unitask/unitask/internal/zmtp"
)

// A connection file without a key, or with an address or port that can't be, is refused with the member's name.
func TestConnection(t *testing.T) {
	good := map[string]any{"transport": "tcp", "ip": "127.0.0.1", "key": "k", "signature_scheme": "hmac-sha256",
		"shell_port": 1, "control_port": 2, "iopub_port": 3, "stdin_port": 4, "hb_port": 5, "kernel_name": "x"}
	for _, c := range []struct {
		member string
		value  any
		want   string
	}{
		{"kernel_name", "y", ""}, {"ip", "::1", ""}, {"ip", "localhost", ""}, {"transport", "ipc", ""},
		{"key", "", "key is missing"}, {"signature_scheme", "hmac-md5", `signature_scheme "hmac-md5"`},
		{"transport", "udp", `transport "udp"`}, {"ip", "*", `ip "*"`}, {"ip", "", `ip ""`}, {"hb_port", 0, "hb_port 0"},
		{"stdin_port", 65536, "stdin_port 65536"}, {"shell_port", "x", "cannot unmarshal"},
	} {
		changed := map[string]any{}
		for name, value := range good {
			changed[name] = value
		}
		changed[c.member] = c.value
		text, _ := json.Marshal(changed)
		_, err := parseConnection(text)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: %v, want %q", c.member, c.value, err, c.want)
		}
	}
}

// Only signed messages are read, and no more of them than is safe.
func TestAttackWire(t *testing.T) {
	s := signer{[]byte("key")}
	good := testjupyter.Frames("key", "1", "execute_request", map[string]any{"code": "1"})
	changed := func(at int, frame string) zmtp.Message {
		frames := append(zmtp.Message{}, good...)
		frames[at] = []byte(frame)
		return frames
	}
	deep := testjupyter.Frames("key", "1", "execute_request", json.RawMessage(strings.Repeat("[", 1000)+
		strings.Repeat("]", 1000)))
	for name, c := range map[string]struct {
		frames zmtp.Message
		want   string
	}{
		"a signed message":     {good, "<nil>"},
		"identities before it": {append(zmtp.Message{[]byte("a"), []byte("b")}, good...), "<nil>"},
		"another key":          {testjupyter.Frames("other", "1", "execute_request", nil), "wrong signature"},
		"no signature":         {changed(1, ""), "wrong signature"},
		"changed code":         {changed(5, `{"code":"2"}`), "wrong signature"},
		"no frames":            {nil, "a message of 0 frames"},
		"a delimiter only":     {good[:1], "a message of 1 frames"},
		"a frame too few":      {good[:5], "a message of 5 frames"},
		"no delimiter":         {good[1:], "a message of 0 frames"},
		"a thousand brackets":  {deep, "brackets in one another"},
		"a type of 64 KiB":     {testjupyter.Frames("key", "1", strings.Repeat("x", 64<<10), nil), "too large"},
		"an id of 64 KiB":      {testjupyter.Frames("key", strings.Repeat("x", 64<<10), "x", nil), "too large"},
		"no type":              {testjupyter.Frames("key", "1", "", nil), "has no type"},
	} {
		_, err := s.parse("peer", c.frames)
		got := fmt.Sprint(err)
		if strings.Contains(got, c.want) {
			got = c.want
		}
		attack.Check(t, "Jupyter's wire: "+name, c.want, got)
	}
}

// FuzzParse reads frames, separated by a byte, that are signed or not. What is encoded is read again.
func FuzzParse(f *testing.F) {
	f.Add([]byte("<IDS|MSG>\xffsig\xff{}\xff{}\xff{}\xff{}"), true)
	f.Add(bytes.Join(testjupyter.Frames("key", "1", "x", map[string]any{}), []byte{0xff}), false)
	f.Fuzz(func(t *testing.T, data []byte, sign bool) {
		s := signer{[]byte("key")}
		frames := zmtp.Message(bytes.Split(data, []byte{0xff}))
		if at := len(frames) - 5; sign && at >= 0 {
			frames[at] = s.sum(frames[at+1:])
		}
		m, err := s.parse("peer", frames)
		if err != nil {
			return
		}
		again, err := s.encode("session", m.kind, m.header, m.content)
		if err != nil {
			return // its content is no JSON
		}
		back, err := s.parse("peer", again)
		if err != nil || back.kind != m.kind {
			t.Fatalf("%v: %q", err, again)
		}
	})
}

// FuzzRead reads what Python sends.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"type":"display","data":{"text/html":"<b onclick=x>$\\href{a}{b}<script>","image/png":"aGk="}}`))
	f.Add([]byte(`{"type":"end","error":"x","expressions":{"a":{"status":"ok","data":{"text/plain":"1"}}},"pages":["x"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := read(data)
		if err != nil {
			return
		}
		s := &server{}
		_, content := s.shown(o, 1)
		if _, err := json.Marshal([]any{content, s.expressions(o.Expressions), pages(o.Pages)}); err != nil {
			t.Fatal(err)
		}
	})
}

// What a machine shows in one message does not grow so much that the client, which reads, is cut off.
func TestAttackGrows(t *testing.T) {
	s := &server{signer: signer{[]byte("key")}}
	text := strings.Repeat("<", pykernel.MaxMessage)
	_, failed := s.shown(output{Type: "error", Value: text}, 1)
	html, _ := json.Marshal(strings.Repeat("&", pykernel.MaxMessage))
	data := map[string]json.RawMessage{"text/html": html}
	shown := s.expressions(map[string]expression{"x": {Status: "ok", Data: data}})
	for _, c := range []struct {
		name    string
		content any
		want    string
	}{
		{"an error of brackets", failed, "bounded"}, {"a page of brackets", pages([]string{text}), "bounded"},
		{"HTML that grows ninefold", shown, errTooLarge.Error()},
	} {
		got := "bounded"
		if frames, err := s.encode("s", "any", nil, c.content); err != nil {
			got = err.Error()
		} else if size := len(frames[5]); size > maxSent {
			got = fmt.Sprint(size, " bytes")
		}
		attack.Check(t, c.name, c.want, got)
	}
}

// Printed text in small pieces costs time that grows with its length, not with its square.
func TestAttackPieces(t *testing.T) {
	line := []byte(`{"type":"stdout","text":"twenty letters of it"}`)
	lines := slices.Repeat([][]byte{line}, pykernel.MaxQueued/(len(line)+pykernel.PieceCost))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	list := merge(lines)
	runtime.ReadMemStats(&after)
	got := "at most 1 GiB copied"
	if copied := after.TotalAlloc - before.TotalAlloc; copied > 1<<30 {
		got = fmt.Sprint(copied>>20, " MiB copied")
	}
	attack.Check(t, "much text in small pieces", "at most 1 GiB copied", got)
	if len(list) != 2 || len(list[0].Text)+len(list[1].Text) != 20*len(lines) {
		t.Errorf("%d messages", len(list))
	}
}
