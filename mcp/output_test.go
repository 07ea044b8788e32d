package mcp

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// A call keeps a limited part of a stream, however long the output is.
func TestStreamIsBounded(t *testing.T) {
	for _, size := range []int{1, 777, 10_000, 1 << 20, 5 << 20} {
		s := newStreams(&live{}, nil)
		piece := bytes.Repeat([]byte("ü"), size)
		for range 20_000_000 / size {
			if n, err := s.stdout.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		res := &unitask.Result{RunID: "R"}
		s.show(res)
		if held := cap(s.stdout.head) + cap(s.stdout.tail); held > 4*usualShown || len(res.Stdout) > usualShown+200 ||
			len(res.Stdout) < usualShown-10 {
			t.Errorf("pieces of %d bytes: %d are held, %d shown", len(piece), held, len(res.Stdout))
		}
		if list := s.cut("R"); len(list) != 1 || list[0].Shown > usualShown || list[0].Total != s.stdout.total {
			t.Errorf("pieces of %d bytes: %+v", len(piece), list)
		}
	}
}

// Both streams and the value share the room of a result: one uses the room that another does not need.
func TestSharedRoom(t *testing.T) {
	for _, row := range []struct {
		stdout, stderr, value    int // printed
		wantOut, wantErr, wantOf int // shown bytes
	}{
		{10, 20, 30, 10, 20, 30},
		{900, 100, 0, 900, 100, 0},
		{5000, 100, 0, 900, 100, 0},
		{5000, 5000, 0, 500, 500, 0},
		{300, 5000, 0, 300, 700, 0},
		{5000, 5000, 5000, 200, 200, 560},
		{0, 0, 5000, 0, 0, 560},
	} {
		most := 1000
		s := newStreams(&live{}, &most)
		fmt.Fprint(&s.stdout, strings.Repeat("o", row.stdout))
		fmt.Fprint(&s.stderr, strings.Repeat("e", row.stderr))
		res := &unitask.Result{Value: strings.Repeat("v", row.value)}
		s.show(res)
		if s.counts[0] != int64(row.wantOut) && row.value < 500 || s.counts[1] != int64(row.wantErr) && row.value < 500 ||
			len(res.Value) > max(row.wantOf, row.value%500) {
			t.Errorf("%+v: %v, %d of the value", row, s.counts, len(res.Value))
		}
	}
}

// A stream is shown as its beginning and its end, as valid text.
func FuzzShown(f *testing.F) {
	f.Add([]byte("hello\n"), 3, 100)
	f.Add([]byte("xüber \xff\xfe uns"), 999, 200)
	f.Add([]byte("ü€𝄞"), 5000, 64)
	f.Add([]byte("\x80\x80\x80\x80\xf0"), 40, 33)
	f.Add([]byte("a"), 100, 0)
	f.Fuzz(func(t *testing.T, piece []byte, times, room int) {
		if times < 0 || times*len(piece) > 1<<20 || room < 0 || room > 1<<16 {
			return
		}
		s := stream{live: &live{}, most: room}
		for range times {
			_, _ = s.Write(piece)
		}
		all := bytes.Repeat(piece, times)
		text, of := s.shown(room, "URI")
		if !utf8.ValidString(text) || of < 0 || of > int64(len(all)) {
			t.Fatalf("%d bytes of %d: %q", of, len(all), text)
		}
		if utf8.Valid(all) && len(all) <= room {
			if text != string(all) || of != int64(len(all)) {
				t.Fatalf("%d of %d bytes: %q", of, len(all), text)
			}
			return
		}
		first, rest, cut := strings.Cut(text, fmt.Sprintf("\n[%d bytes are left out here: URI]\n", int64(len(all))-of))
		switch {
		case !cut && of == int64(len(all)): // its replaced bytes fit
			return
		case !cut && text == "" && of == 0 && room < 4*utf8.UTFMax:
			return
		case !cut || len(first)+len(rest) > room:
			t.Fatalf("%d of %d bytes, %d of %d are text", of, len(all), len(first)+len(rest), room)
		}
		if utf8.Valid(all) && (!bytes.HasPrefix(all, []byte(first)) || !bytes.HasSuffix(all, []byte(rest)) ||
			int64(len(first)+len(rest)) != of || of < int64(room)-2*utf8.UTFMax) {
			t.Fatalf("%d of %d bytes: %q … %q", of, len(all), first, rest)
		}
	})
}

// The text of a result has 32 KiB at most, whatever hostile code does.
func TestReportIsBounded(t *testing.T) {
	for _, piece := range []string{"\xffa", "a", "é", "\n", "\x01"} {
		long := strings.Repeat("\u202e"+piece, 5000)
		s := newStreams(&live{}, nil)
		fmt.Fprint(&s.stdout, strings.Repeat(piece, 3<<20))
		fmt.Fprint(&s.stderr, strings.Repeat(piece, 3<<20))
		res := &unitask.Result{RunID: "20261127-115502000-abcdef", Outcome: unitask.OutcomeFailed, Error: long, Value: long,
			Truncated: true}
		for range 1000 {
			res.Hints = append(res.Hints, run.Hint{Kind: run.HintFile, Text: long})
			res.Policy.Denials = append(res.Policy.Denials, policy.Denial{Field: "allowNet", Requested: long, Reason: long})
			res.ArtifactsRefused = append(res.ArtifactsRefused, record.Refusal{Path: long, Reason: long})
			res.Artifacts = append(res.Artifacts, record.Artifact{Path: long})
		}
		s.show(res)
		said := &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: report(res)}}}
		answer(said, res, nil, s, nil)
		if text := said.Content[0].(*sdk.TextContent).Text; len(text) > 32<<10 || !utf8.ValidString(text) {
			t.Errorf("%q: %d bytes", piece, len(text))
		}
		w := waitResult{Outcome: "failed", Error: long, Output: string(res.Stdout)}
		if text := w.text(); len(text) > 32<<10 {
			t.Errorf("%q: %d bytes of a command in the background", piece, len(text))
		}
	}
}

// view shows at most 32 KiB of a file, and no part of a secret, even at the cut.
func TestViewIsBounded(t *testing.T) {
	const secret = "sk-live-0123456789abcdefghijklmnopqrstuvwxyz"
	redact := func(text string) string { return strings.ReplaceAll(text, secret, "[redacted]") }
	for _, text := range []string{
		strings.Repeat("a", maxShownFile-20) + "\n" + strings.Repeat("b", maxShownFile-1) + "\n",
		strings.Repeat("\n", 1<<20), strings.Repeat("a", 1<<20),
		strings.Repeat("a", maxShownFile-20) + secret + "\n",
		strings.Repeat("a\n", maxShownFile/9) + secret + "\n",
	} {
		shown, err := numbered([]byte(text), redact, nil)
		if err != nil || len(shown) > 32<<10 || strings.Contains(shown, secret[:9]) {
			t.Errorf("%.9q…: %d bytes, %v: …%q", text, len(shown), err, shown[max(0, len(shown)-60):])
		}
	}
	key := "begin\nmiddle\nend\n" // later lines have other numbers than in the file, and insert uses the file's
	hide := func(text string) string { return strings.ReplaceAll(text, key, "[redacted]") }
	for text, noted := range map[string]bool{"a\n" + key + "b\n": true, "a\nb\n": false} {
		shown, err := numbered([]byte(text), hide, nil)
		if err != nil || strings.Contains(shown, "other numbers") != noted {
			t.Errorf("%q: %q, %v", text, shown, err)
		}
	}
}

// A model reads that output is missing before the rest of the output.
func TestWaitLost(t *testing.T) {
	for lost, want := range map[int64]bool{0: false, 7: true} {
		w := waitResult{Outcome: running, Lost: lost, Output: "x", Resource: "unitask://runs/1/stdout"}
		if text := w.text(); strings.Contains(text, "7 bytes before") != want {
			t.Errorf("lost %d: %q", lost, text)
		}
	}
}
