package e2b

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// text returns a pointer to a text.
func text(s string) *string { return &s }

// messages are one of each kind, as they are sent.
func messages() map[string]any {
	pid, input := uint32(7), []byte("in")
	return map[string]any{
		"start": &startRequest{Process: processConfig{Cmd: "sh", Args: []string{"-c", ""}, Envs: map[string]string{"A": "b"},
			Cwd: text("/x")}, PTY: &pty{&ptySize{80, 24}}, Tag: text("t")},
		"select": &selectRequest{selector{PID: &pid}},
		"input":  &inputRequest{selector{Tag: text("t")}, processInput{Stdin: &input}},
		"end":    &eventMessage{processEvent{End: &endEvent{ExitCode: -1, Status: "killed", Error: text("e")}}},
		"list":   &listProcesses{[]processInfo{{Config: processConfig{Cmd: "a"}, PID: 1}, {PID: 2}}},
	}
}

// Decoding returns the encoded values, in both forms.
func TestCodecs(t *testing.T) {
	for name, m := range messages() {
		for form, c := range map[string]interface {
			Marshal(any) ([]byte, error)
			Unmarshal([]byte, any) error
		}{"binary": binaryCodec{}, "json": jsonCodec{"json"}} {
			data, err := c.Marshal(m)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, form, err)
			}
			got := reflect.New(reflect.TypeOf(m).Elem()).Interface()
			if err := c.Unmarshal(data, got); err != nil || !reflect.DeepEqual(got, m) {
				t.Errorf("%s, %s: got %+v, want %+v, %v", name, form, got, m, err)
			}
		}
	}
}

// The forms that clients expect where Go's usual ones differ.
func TestJSONForms(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	data, err := json.Marshal(entryInfo{Name: "a", Type: kindFolder, Path: "/a", Size: 5, Mode: 0o755, Modified: at})
	want := `{"name":"a","type":"FILE_TYPE_DIRECTORY","path":"/a","size":"5","mode":493,"permissions":"","owner":"",` +
		`"group":"","modifiedTime":"2026-01-02T03:04:05Z"}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
	for sent, want := range map[string]enum{`"SIGNAL_SIGKILL"`: "SIGNAL_SIGKILL", `9`: "9"} {
		var got enum
		if err := json.Unmarshal([]byte(sent), &got); err != nil || got != want {
			t.Errorf("%s: got %q, want %q, %v", sent, got, want, err)
		}
	}
}

// Wrong messages are errors, not panics.
func TestBadMessages(t *testing.T) {
	for name, data := range map[string][]byte{
		"cut":                       {1<<3 | 2, 9, 'x'},
		"a number for a text":       {1<<3 | 2, 2, 1 << 3, 1},
		"an end without a group":    {1<<3 | 4},
		"a number of eleven digits": append([]byte{1 << 3}, []byte(strings.Repeat("\xff", 11))...),
	} {
		if err := (binaryCodec{}).Unmarshal(data, &startRequest{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := (jsonCodec{}).Unmarshal(nil, &startRequest{}); err == nil {
		t.Error("an empty message: no error")
	}
}

// FuzzMessage reads hostile messages in both forms; what was read can be written.
func FuzzMessage(f *testing.F) {
	for _, m := range messages() {
		binary, _ := binaryCodec{}.Marshal(m)
		text, _ := jsonCodec{}.Marshal(m)
		f.Add(binary)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, m := range []any{&startRequest{}, &inputRequest{}, &signalRequest{}, &streamInput{}, &watchRequest{},
			&updateRequest{}} {
			if (binaryCodec{}).Unmarshal(data, m) == nil {
				if _, err := (binaryCodec{}).Marshal(m); err != nil {
					t.Fatal(err)
				}
			}
			_ = (jsonCodec{}).Unmarshal(data, m)
		}
	})
}

// FuzzKernelMessage reads what a kernel sends.
func FuzzKernelMessage(f *testing.F) {
	f.Add([]byte(`{"type":"stdout","text":"x"}` + "\n" + `{"type":"end_of_execution"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for m := range bytes.Lines(data) {
			pass(m, &lines{}, false)
		}
	})
}
