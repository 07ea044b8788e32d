package debug

import (
	"bufio"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/vmm"
)

// schemaText is a part of a QEMU's schema.
const schemaText = `[
 {"name": "query-status", "ret-type": "1", "meta-type": "command", "arg-type": "0"},
 {"name": "stop", "ret-type": "0", "meta-type": "command", "arg-type": "0"},
 {"name": "device-list-properties", "meta-type": "command", "arg-type": "2"},
 {"name": "query-block", "meta-type": "command", "arg-type": "0"},
 {"name": "set-action", "meta-type": "command", "arg-type": "3"},
 {"name": "0", "meta-type": "object", "members": []},
 {"name": "2", "meta-type": "object", "members": [{"name": "typename", "type": "str"}]},
 {"name": "3", "meta-type": "object", "members": [{"name": "reboot", "type": "4", "default": null}, {"name": ` +
	`"count", "type": "int", "default": null}, {"name": "on", "type": "bool", "default": null}, {"name": "options", ` +
	`"type": "0", "default": null}, {"name": "list", "type": "5", "default": null}]},
 {"name": "4", "meta-type": "enum", "values": ["reset", "shutdown"]},
 {"name": "5", "meta-type": "array", "element-type": "str"},
 {"name": "str", "meta-type": "builtin", "json-type": "string"},
 {"name": "int", "meta-type": "builtin", "json-type": "int"},
 {"name": "bool", "meta-type": "builtin", "json-type": "boolean"}
]`

// open returns a console on a QEMU that answers with answer; the commands that it receives come from sent.
func open(t *testing.T, answer func(command string) string) (c *Console, sent func() []string) {
	t.Helper()
	ours, theirs := net.Pipe()
	var mu sync.Mutex
	var commands []string
	var group sync.WaitGroup
	group.Go(func() {
		defer theirs.Close()
		_, _ = io.WriteString(theirs,
			`{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7}, "package": ""}, "capabilities": []}}`+"\n")
		for lines := bufio.NewScanner(theirs); lines.Scan(); {
			var cmd struct {
				Execute   string
				ID        string
				Arguments json.RawMessage
			}
			if json.Unmarshal(lines.Bytes(), &cmd) != nil {
				return
			}
			result := "{}"
			switch cmd.Execute {
			case "qmp_capabilities":
			case "query-qmp-schema":
				result = strings.ReplaceAll(schemaText, "\n", " ")
			default:
				mu.Lock()
				commands = append(commands, strings.TrimSpace(cmd.Execute+" "+string(cmd.Arguments)))
				mu.Unlock()
				result = answer(cmd.Execute)
			}
			fmt.Fprintf(theirs, `{"return": %s, "id": %q}`+"\n", result, cmd.ID)
		}
	})
	m := vmm.NewMonitor(ours)
	t.Cleanup(func() {
		_ = m.Disconnect()
		group.Wait()
	})
	c = New(Config{Monitor: func() *vmm.Monitor { return m }})
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(commands)
	}
}

func TestCommands(t *testing.T) {
	c, sent := open(t, func(string) string { return `{"running": false}` })
	for _, line := range []string{
		"query_status", `device_list_properties typename=virtio-net-device`, `{"execute": "stop"}`,
		`set-action reboot=shutdown count=0x10 on=true options.a.b=3 options.c=text`, `set-action {"count": 3}`,
		`set-action list=["a", "b c"]`, "stop",
	} {
		if _, err := c.Do(t.Context(), line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	want := []string{"query-status", `device-list-properties {"typename":"virtio-net-device"}`, "stop",
		`set-action {"count":16,"on":true,"options":{"a":{"b":3},"c":"text"},"reboot":"shutdown"}`, `set-action {"count":3}`,
		`set-action {"list":["a","b c"]}`, "stop"}
	if got := sent(); !slices.Equal(got, want) {
		t.Errorf("sent %q", got)
	}
	for line, want := range map[string]string{
		"qury-status":                       "did you mean query-status",
		"zzzzzzzz":                          "no command",
		"device_list_properties":            "needs typename; the command is: device-list-properties typename=str",
		"device_list_properties type=x":     `no argument "type"`,
		"device_list_properties x":          "not KEY=VALUE",
		"set-action reboot=now":             "not one of reset|shutdown",
		"set-action count=many":             "not a whole number",
		"set-action on=maybe":               "not true or false",
		"set-action list=[1":                "not JSON",
		"{}":                                "not a QMP command",
		`hmp "x`:                            "a quote is not closed",
		"step":                              "gdb stub",
		"step 0":                            "from 1 to",
		"mem nowhere 4":                     "neither an address nor a symbol",
		"mem 0 0":                           "a length from 1",
		"mem 0 99999999":                    "a length from 1",
		"snapshot a":                        "only the console that started",
		"restore a":                         "only the console that started",
		"dump x":                            "can't be dumped",
		"net":                               "not known here",
		"wait":                              "wait serial",
		"wait serial x 5":                   "not a time",
		"wait serial nothing 1ms":           "not within 1ms",
		"wait stopped soon":                 "not a time",
		"help nothing":                      "no command",
		`set-action {"count": 3`:            "the command is",
		"break nowhere":                     "symbol",
		"device_list_properties typename.a": "not KEY=VALUE",
	} {
		if line == "mem nowhere 4" || line == "break nowhere" {
			c.Symbols = &Symbols{}
		}
		_, err := c.Do(t.Context(), line)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
		c.Symbols = nil
	}
	if _, err := c.Do(t.Context(), "quit"); !errors.Is(err, ErrQuit) {
		t.Error(err)
	}
}

func TestComplete(t *testing.T) {
	c, _ := open(t, func(string) string { return "{}" })
	for line, want := range map[string][]string{
		"query_":                       {"query-block", "query-status"},
		"sn":                           {"snapshot"},
		"device-list-properties ":      {"typename="},
		"set-action re":                {"reboot="},
		"set-action reboot=s":          {"reboot=shutdown"},
		"set-action reboot=reset re":   nil,
		"set-action reboot=reset coun": {"count="},
		"nothing ":                     nil,
	} {
		if got := c.Complete(line); !slices.Equal(got, want) {
			t.Errorf("%q: %q", line, got)
		}
	}
}

func TestWaitAndScript(t *testing.T) {
	c, _ := open(t, func(string) string { return `{"running": false, "status": "paused", "n": [1, 2]}` })
	c.Feed("serial", []byte("booting\nlogin: "))
	c.Feed("stdout", []byte("one two one"))
	c.Ended("exited, exit code 0")
	script := `# a script
query-status
assert .running == false and (.n | length) == 2
wait serial "login: " 1s
wait stdout one
wait stdout one
wait end
`
	var lines []Line
	if err := c.Script(t.Context(), strings.NewReader(script), func(l Line) { lines = append(lines, l) }); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 6 || lines[0].Number != 2 ||
		fmt.Sprint(lines[0].Result) != "map[n:[1 2] running:false status:paused]" {
		t.Errorf("%+v", lines)
	}
	for script, want := range map[string]string{
		"query-status\nassert .running":            "line 2: the script failed: assert .running: false",
		"query-status\nassert .running ==":         "line 2",
		"query-status\nassert error(\"x\")":        "x",
		"assert .a":                                "line 1",
		"query-status\nassert empty":               "no result",
		"nonsense":                                 "no command",
		"wait stdout one 1h":                       "will not come", // it was waited for twice, and the run is over
		"query-status\nassert (.n | range(10000))": "assert",
	} {
		err := c.Script(t.Context(), strings.NewReader(script), func(Line) {})
		if !errors.Is(err, ErrScript) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", script, err)
		}
	}
}

// A kernel that has moved itself is found by the page that it runs in.
func TestSymbols(t *testing.T) {
	text := make([]byte, 8*page)
	for i := range text {
		text[i] = byte(i*7 + i/page*13 + i/256)
	}
	s := &Symbols{
		byName:    map[string]uint64{"start": 0x1000, "main": 0x3010, EntrySymbol: 0x100},
		byAddress: []elf.Symbol{{Name: "start", Value: 0x1000}, {Name: "main", Value: 0x3010}},
		text:      []segment{{0x1000, text}},
	}
	if got := s.At(0x3020); got != "main+0x10" {
		t.Error(got)
	}
	if got := s.At(0x900000000); got != "" {
		t.Error(got)
	}
	const slide = 0xffffffff80000000
	memory := slices.Clone(text[2*page : 3*page])
	for i := 100; i < 300; i++ {
		memory[i] = 0 // relocated
	}
	if !s.Locate(slide+0x3020, memory) || s.At(slide+0x3020) != "main+0x10" {
		t.Errorf("%#x", s.slide)
	}
	if at, err := s.Address("main+4"); err != nil || at != slide+0x3014 {
		t.Errorf("%#x %v", at, err)
	}
	if at, err := s.Address(EntrySymbol); err != nil || at != 0x100 {
		t.Errorf("%#x %v", at, err)
	}
	high := &Symbols{text: []segment{{slide, text}}}
	if high.Locate(0x3020, text[2*page:3*page]) || !high.Locate(slide+0x200000, text[2*page:3*page]) ||
		high.slide != 0x200000-2*page {
		t.Errorf("%#x: a kernel at the top stays there, whatever it runs at before it has its pages", high.slide)
	}
	for i := range memory {
		memory[i] = byte(i * i)
	}
	if s.Locate(0x777000, memory) {
		t.Error("a page that is not the kernel's was taken for one")
	}
	var none *Symbols
	if at, err := none.Address("0x10+16"); err != nil || at != 0x20 || none.At(1) != "" || none.Locate(1, nil) {
		t.Error(at, err)
	}
}

// A stub that never answers, and one that sends too much, do not block the console.
func TestStub(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() { // until the test closes its end
		r := bufio.NewReader(theirs)
		for {
			packet, err := r.ReadString('#')
			if err != nil {
				return
			}
			_, _ = r.Discard(2)
			switch {
			case strings.HasSuffix(packet, "$s#"):
				_, _ = io.WriteString(theirs, "+$T05thread:01;#07")
			case strings.HasSuffix(packet, "$Z1,10,1#"):
				_, _ = io.WriteString(theirs, "+$OK#9a")
			case strings.HasSuffix(packet, "$Z1,20,1#"):
				_, _ = io.WriteString(theirs, "+$E22#a9")
			default:
				theirs.Close()
				return
			}
		}
	}()
	s := newStub(ours)
	defer ours.Close()
	ctx := t.Context()
	if err := s.step(ctx); err != nil {
		t.Error(err)
	}
	if err := s.breakpoint(ctx, true, 0x10); err != nil {
		t.Error(err)
	}
	if err := s.breakpoint(ctx, true, 0x20); err == nil {
		t.Error("a refusal was taken for an answer")
	}
	if err := s.breakpoint(ctx, false, 0x10); err == nil {
		t.Error("the end of the connection was taken for an answer")
	}
	silent, other := net.Pipe()
	defer silent.Close()
	go func() { _, _ = io.Copy(io.Discard, other) }() // until silent is closed
	timed, cancel := context.WithCancel(ctx)
	cancel()
	if err := newStub(silent).step(timed); err == nil {
		t.Error("silence was taken for an answer")
	}
}

// A QEMU that does not read requests, or acknowledgements of its own packets, blocks nobody.
func TestAttackStubUnread(t *testing.T) {
	for name, wait := range map[string]func(s *stub, theirs net.Conn) string{
		"a request": func(s *stub, _ net.Conn) string {
			if err := s.step(t.Context()); err != nil {
				return "an error"
			}
			return "an answer"
		},
		"an acknowledgement": func(s *stub, theirs net.Conn) string {
			_, _ = io.WriteString(theirs, "$T05#b9")
			if _, ok := <-s.packets; !ok {
				return "an error"
			}
			return "a packet"
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			s := newStub(ours)
			defer ours.Close()
			begin := time.Now()
			seen := wait(s, theirs)
			attack.Check(t, "gdb's protocol: a QEMU does not read "+name, "an error after 5s",
				seen+" after "+time.Since(begin).String())
		})
	}
}
